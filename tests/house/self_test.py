#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each check of house_test.py passes on a clean tree and fails on a tree with one violation, and names it."""
import pathlib
import tempfile
import unittest

import house_test

LINE = "// SPDX-License-Identifier: Apache-2.0\n"
CLEAN = {
    ".clang-format": "BasedOnStyle: Google\nColumnLimit: 120\n",
    "CMakeLists.txt": "# SPDX-License-Identifier: Apache-2.0\n",
    "docs/a.svg": '<svg xmlns="http://www.w3.org/2000/svg"></svg>\n',
    "LICENSE": "http://www.apache.org/licenses/\n",
    "include/tersekv/a.h": LINE + '#include <vector>\n\n#include "tersekv/b.h"\n',
    "src/base/a.cc": LINE + '#include "src/base/a.h"\n',
    "src/cpu/a.cc": LINE + '#include "hwy/highway.h"\n#include "src/base/b.h"\n',
    "src/cuda/a.cu": LINE + '#include <cuda_runtime.h>\n\n#include "src/codec/b.h"\n',
    "hosts/llama/a.cc": LINE + '#include "llama.h"\n#include "src/base/b.h"\n',
    "cli/a.cc": LINE + '#include <CLI/CLI.hpp>\n\n#include "cli/b.h"\n#include "tersekv/llama.h"\n// the assistant\n',
    "examples/a.cc": LINE + '#include "tersekv/llama.h"\n',
    "scripts/a.sh": "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\nmktemp a.XXXXXX\n",
    "tests/base/a_test.cc": LINE + '#include "src/cpu/a.h"\n',
    "tests/cpu/a_test.cc": LINE + '#include "hwy/highway.h"\n',
    "tests/cuda/a_test.cc": LINE + '#include "src/cuda/a.h"\n',
}
# check -> trees that break it: (what is written over the clean tree, what the report must name).
BROKEN = {
    "includes": [
        ({"src/base/a.cc": LINE + '#include "src/cpu/a.h"\n'}, "base stands before cpu"),
        ({"src/api/a.cc": LINE + '#include "src/io/a.h"\n'}, "api stands beside io"),
        ({"src/io/a.cc": LINE + '#include "src/api/a.h"\n'}, "io stands beside api"),
        ({"src/io/a.cc": LINE + '#include "src/calibration/a.h"\n'}, "io stands beside calibration"),
        ({"src/codec/a.cc": LINE + '#include "src/io/a.h"\n'}, "codec stands before io"),
        ({"src/base/a.cc": LINE + '#include "hwy/highway.h"\n'}, "SIMD"),
        ({"src/base/a.cc": LINE + "#  include <cuda_runtime.h>\n"}, "CUDA"),
        ({"src/cuda/a.cu": LINE + '#include "src/cpu/a.h"\n'}, "do not know each other"),
        ({"src/cuda/a.cuh": LINE + '#include "hwy/highway.h"\n'}, "SIMD"),
        ({"src/base/a.cc": LINE + '#include "tersekv/llama.h"\n'}, "hosts"),
        ({"src/base/a.cc": LINE + '#include "cli/a.h"\n'}, "hosts"),
        ({"src/attic/a.cc": LINE + '#include "src/base/a.h"\n'}, "'attic' is no room"),
        ({"src/api/a.cc": LINE + '#include "ggml-cpu.h"\n'}, "only hosts/llama"),
        ({"include/tersekv/a.h": LINE + '#include "src/base/a.h"\n'}, "installed headers"),
        ({"include/tersekv/a.h": LINE + "#include <hwy/base.h>\n"}, "installed headers"),
        ({"include/tersekv/a.h": LINE + "#include <cuda_fp16.h>\n"}, "installed headers"),
        ({"include/tersekv/a.h": LINE + "#include <llama.h>\n"}, "only hosts/llama"),
        ({"hosts/llama/a.cc": LINE + '#include "cli/a.h"\n'}, "hosts include"),
        ({"cli/a.cc": LINE + '#include "src/base/a.h"\n'}, "the CLI uses"),
        ({"cli/a.cc": LINE + '#include "llama.h"\n'}, "only hosts/llama"),
        ({"examples/a.cc": LINE + '#include "src/base/a.h"\n'}, "examples use"),
    ],
    "length": [({"src/base/a.cc": LINE * 401}, "401 lines"), ({"cmake/a.cmake": "# SPDX\n" * 500}, "500 lines")],
    "spdx": [
        ({"src/base/a.cc": "\n" + LINE}, "src/base/a.cc"),
        ({"scripts/a.sh": "#!/bin/sh\necho\n"}, "scripts/a.sh"),
        ({"scripts/run": "#!/bin/sh\necho\n"}, "scripts/run"),
        ({"src/CMakeLists.txt": "project(a)\n"}, "src/CMakeLists.txt"),
        ({"src/base/empty.h": ""}, "src/base/empty.h"),
    ],
    "words": [
        ({"README.md": "See https://example.org/a\n"}, "https://example.org/a"),
        ({"README.md": "a\n/work/main\n"}, "README.md:2"),
        ({"README.md": "cd /root/.cache\n"}, "/root/"),
        ({"README.md": "a subagent\n"}, "subagent"),
        ({"src/base/a.cc": LINE + "// the assistant\n"}, "assistant"),
        ({"src/base/a.cc": LINE + "// TODO: a\n"}, "TODO"),
        ({"src/base/a.cc": LINE + "// XXX a\n"}, "XXX"),
        ({"tests/base/a_test.cc": LINE + "// FIXME(a): b\n"}, "FIXME"),
    ],
    "format": [({"src/base/a.cc": LINE + "int  a ;\n"}, "src/base/a.cc:2")],
    "mirror": [
        ({"tests/attic/a_test.cc": LINE}, "tests/attic"),
        ({"src/bits/a.cc": LINE}, "tests/bits"),
        ({"src/base/a_test.cc": LINE}, "src/base/a_test.cc"),
    ],
    "size": [({"docs/a.bin": "\0" * ((1 << 20) + 1)}, "docs/a.bin")],
}


class SelfTest(unittest.TestCase):
    def faults(self, check, files):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (CLEAN | files).items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            try:
                return list(house_test.CHECKS[check](house_test.Tree(folder)))
            except house_test.Skip as reason:
                self.skipTest(str(reason))

    def test_every_check_is_here(self):
        self.assertEqual(set(BROKEN), set(house_test.CHECKS))

    def test_clean(self):
        for check in house_test.CHECKS:
            if check != "format":
                self.assertEqual(self.faults(check, {}), [], check)

    def test_clean_format(self):
        self.assertEqual(self.faults("format", {}), [])


def broken(check, files, named):
    def test(self):
        faults = self.faults(check, files)
        self.assertEqual(len(faults), 1, faults)
        self.assertIn(named, faults[0])
    return test


for the_check, trees in BROKEN.items():
    for index, (written, word) in enumerate(trees):
        setattr(SelfTest, f"test_{the_check}_{index}", broken(the_check, written, word))

if __name__ == "__main__":
    unittest.main()
