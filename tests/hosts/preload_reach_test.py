#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where libtersekv_preload.so is gone around, and libraries that it does not fit: preload_reach_test.py PRELOAD LLAMA_BIN.

The programs are this file again, in a process of its own: it opens a libllama by ctypes and runs a few tokens.
"""
import ctypes
import glob
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import preload
import preload_calls as calls

SO, LLAMA_BIN = sys.argv[1:3]
LLAMA_LIB = os.path.realpath(f"{LLAMA_BIN}/../lib")
CC = shutil.which("cc") or shutil.which("gcc")


def run_tokens(library, mode):
    """Loads the model and runs 300 tokens; library's own functions, as ctypes finds them."""
    e = calls.declare(ctypes.CDLL(library, mode=mode))
    _, context, _ = calls.open_context(e, preload.random_model(), n_ctx=1024, n_batch=512, n_ubatch=512)
    code = calls.decode(e, context, [(i % 97, i, [0], i == 299) for i in range(300)])
    print("code", code, "logit", e.llama_get_logits_ith(context, 299)[0])
    e.llama_free(context)


def foreign(library):
    """Asks for a context of a library that is not llama.cpp's."""
    ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    e = ctypes.CDLL(None)
    e.llama_init_from_model.restype = ctypes.c_void_p
    e.llama_init_from_model.argtypes = [ctypes.c_void_p, ctypes.c_char * 1024]
    print("context", e.llama_init_from_model(ctypes.c_void_p(16), (ctypes.c_char * 1024)()))


def inside(function, *arguments, kv="k4v4", preload_object=SO, **variables):
    done = subprocess.run([sys.executable, "-B", __file__, SO, LLAMA_BIN, "--inside", function, *map(str, arguments)],
                          env=preload.environment(preload_object, kv, **variables), capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def proxy_lines():
    """The shell lines of docs/serving.md, without the one that starts the program."""
    page = (preload.ROOT / "docs/serving.md").read_text().split("### ctypes")[1]
    lines = re.search(r"```sh\n(.*?)```", page, re.S)[1].splitlines()
    assert lines[-1].startswith("LLAMA_CPP_LIB_PATH=$PWD/proxy TERSEKV_KV=k4v4 python"), lines
    return "\n".join(lines[:-1])


class GoneAround(unittest.TestCase):
    AROUND = "was loaded by the program itself and no context was asked for through this object"

    def test_ctypes_and_deepbind_run_stock_and_it_is_said(self):
        for name, mode in (("ctypes", os.RTLD_NOW), ("deepbind", os.RTLD_NOW | os.RTLD_DEEPBIND),
                           ("global deepbind", os.RTLD_NOW | os.RTLD_DEEPBIND | os.RTLD_GLOBAL)):
            with self.subTest(name):
                library = glob.glob(f"{LLAMA_LIB}/libllama.so")[0]
                code, out, said = inside("run_tokens", library, mode)
                self.assertEqual(code, 0, said)
                self.assertIn("code 0", out)
                self.assertNotIn("packed as", said)
                self.assertEqual(said.count(self.AROUND), 1, said)
                self.assertNotIn(self.AROUND, inside("run_tokens", library, mode, kv=None)[2])

    def test_programs_that_are_reached_hear_nothing_of_it(self):
        bench = f"{LLAMA_BIN}/llama-bench"
        for arguments in (["--help"], ["-m", preload.random_model(), "-p", "16", "-n", "1", "-r", "1"]):
            code, said = preload.run([bench, *arguments], preload.environment(SO, "k4v4"))
            self.assertEqual(code, 0)
            self.assertNotIn(self.AROUND, said)

    def test_the_proxy_of_the_page(self):
        if not CC:
            self.skipTest("no C compiler here")
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["sh", "-ec", proxy_lines()], cwd=folder, check=True,
                           env={**os.environ, "TERSEKV": os.path.dirname(os.path.abspath(SO)), "LLAMA": LLAMA_LIB})
            proxy = f"{folder}/proxy/libllama.so"
            code, out, said = inside("run_tokens", proxy, os.RTLD_NOW, preload_object=None)
            self.assertEqual((code, "code 0" in out), (0, True), said)
            self.assertIn("packed as k4v4", said)
            self.assertNotIn(self.AROUND, said)
            stock = inside("run_tokens", glob.glob(f"{LLAMA_LIB}/libllama.so")[0], os.RTLD_NOW, preload_object=None)[1]
            logits = [float(text.split()[-1]) for text in (out, stock)]
            self.assertNotEqual(*logits)  # packed
            self.assertLess(abs(logits[0] - logits[1]), 0.5)
            _, without, said = inside("run_tokens", proxy, os.RTLD_NOW, preload_object=None, kv=None)
            self.assertEqual((without, "tersekv:" in said), (stock, False))


class WrongLibrary(unittest.TestCase):
    def library(self, folder, text):
        path = pathlib.Path(folder, "libllama.so")
        pathlib.Path(folder, "a.c").write_text(text)
        subprocess.run([CC, "-shared", "-fPIC", "-w", "-o", path, f"{folder}/a.c"], check=True)
        return path

    def functions(self, context_bytes, fill):
        """All functions that the object calls, of a library with parameters of other sizes."""
        listed = (preload.ROOT / "hosts/llama/preload/engine_functions.txt").read_text().split()
        names = {name.lstrip("?") for name in listed} - {"llama_context_default_params", "llama_model_default_params"}
        text = "".join(f"void *{name}(void) {{ return (void *)0; }}\n" for name in sorted(names - {"llama_version"}))
        text += 'const char *llama_version(void) { return "9.9"; }\n'
        for kind, size in (("context", context_bytes), ("model", 72)):
            text += (f"struct {kind} {{ char b[{size}]; }};\nstruct {kind} llama_{kind}_default_params(void) {{ struct {kind} p; "
                     f"for (int i = 0; i < {size}; ++i) p.b[i] = {fill}; return p; }}\n")
        return text

    def test_it_is_said_and_the_call_goes_on_or_is_refused(self):
        if not CC:
            self.skipTest("no C compiler here")
        few = "void *llama_init_from_model(void) { return (void *)0; }\n"
        for text, words in ((few, ["this libllama has no ", "llama_decode"]),
                            (self.functions(400, 0), ["libllama 9.9 has context parameters of 400 bytes", "built for"])):
            with tempfile.TemporaryDirectory() as folder:
                library = self.library(folder, text)
                code, out, said = inside("foreign", library)
                self.assertEqual((code, out), (0, "context None\n"), said)
                for word in ["not packed, llama.cpp's own cache is used: ", *words]:
                    self.assertIn(word, said)
                self.assertIn("refused: ", inside("foreign", library, STRICT=1)[2])


if __name__ == "__main__":
    if sys.argv[3:4] == ["--inside"]:
        arguments = [int(a) if a.isdigit() else a for a in sys.argv[5:]]
        globals()[sys.argv[4]](*arguments)
    else:
        preload.need(SO, f"{LLAMA_BIN}/llama-bench")
        unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
