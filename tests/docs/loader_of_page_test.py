#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles the Loader of docs/writing_a_codec.md with nvcc, and broken ones: loader_of_page_test.py ROOT.

The broken ones must be refused by the static_assert that names the fault. Exit code 77 (skipped) without nvcc. Standard
library only; no GPU is needed.
"""
import glob
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

PAGE = "docs/writing_a_codec.md"
SKIPPED = 77
# what is changed, and what the compiler must then say
BROKEN = [(r"^ *static constexpr float kUnit = .*\n", "", "a Loader says kBits, kUnit"),
          (r"kBits = 8;", "kBits = 7;", "places values of 2 to 6, 8 and 16 bits")]


def find_nvcc():
    places = [os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "nvcc"), shutil.which("nvcc"),
              *sorted(glob.glob("/usr/local/cuda-*/bin/nvcc"), reverse=True)]
    return next((place for place in places if place and os.access(place, os.X_OK)), None)


def compile_text(nvcc, root, folder, text):
    """(whether it compiled, what was said)."""
    source = folder / "loader.cu"
    source.write_text(text)
    done = subprocess.run([nvcc, "-std=c++20", "--expt-relaxed-constexpr", "-arch=compute_90a", "-ptx", f"-I{root}",
                           f"-I{root}/include", str(source), "-o", str(folder / "loader.ptx")],
                          capture_output=True, text=True)
    return done.returncode == 0, done.stdout + done.stderr


def main(root):
    found = re.findall(r"^```cuda\n(.*?)^```$", (pathlib.Path(root) / PAGE).read_text(), re.M | re.S)
    if len(found) != 1:
        sys.exit(f"{PAGE}: {len(found)} blocks of cuda, want 1")
    nvcc = find_nvcc()
    if not nvcc:
        print("no nvcc here")
        return SKIPPED
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        compiled, said = compile_text(nvcc, root, folder, found[0])
        if not compiled:
            sys.exit(f"{PAGE}: the Loader does not compile\n{said}")
        if "AttendKernelBody" not in (folder / "loader.ptx").read_text():
            sys.exit(f"{PAGE}: no kernel came out")
        for pattern, text, message in BROKEN:
            broken, count = re.subn(pattern, text, found[0], flags=re.M)
            compiled, said = compile_text(nvcc, root, folder, broken)
            if count != 1 or compiled or message not in said:
                sys.exit(f"{PAGE}: with {pattern} -> '{text}' ({count} times) '{message}' was not said\n{said}")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
