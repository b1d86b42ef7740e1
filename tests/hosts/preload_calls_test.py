#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Single calls of llama.h under libtersekv_preload.so: preload_calls_test.py PRELOAD LLAMA_BIN [TEST...].

Runs itself again in a process with the object in front; what that prints and its exit code are looked at here.
"""
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import unittest

import preload
import preload_calls as calls

SO, LLAMA_BIN = sys.argv[1:3]


def bad_paths(model):
    """Files that cannot be read or written are errors of the call, and so is an exception inside of it."""
    e = calls.engine(LLAMA_BIN)
    _, context, memory = calls.open_context(e, model, n_ctx=512, n_batch=64, n_ubatch=64)
    out = {"decode": calls.decode(e, context, [(1, 0, [0], True)])}
    n = ctypes.c_size_t()
    room = (ctypes.c_int32 * 8)()
    with tempfile.TemporaryDirectory() as folder:
        cut = os.path.join(folder, "cut")
        whole = os.path.join(folder, "whole")
        e.llama_state_seq_save_file(context, whole.encode(), 0, (ctypes.c_int32 * 1)(1), 1)
        with open(whole, "rb") as f, open(cut, "wb") as g:
            g.write(f.read()[:-9])
        for name, path in (("folder", folder), ("missing", folder + "/none"), ("cut", cut), ("null", None)):
            path = path and path.encode()
            out[f"load {name}"] = e.llama_state_seq_load_file(context, path, 0, room, 8, ctypes.byref(n))
        for name, path in (("folder", folder), ("no folder", folder + "/a/b"), ("null", None)):
            path = path and path.encode()
            out[f"save {name}"] = e.llama_state_seq_save_file(context, path, 0, room, 1)
            out[f"save all {name}"] = e.llama_state_save_file(context, path, room, 1)
        out["length"] = e.llama_memory_seq_pos_max(memory, 0)
        out["whole"] = e.llama_state_seq_load_file(context, whole.encode(), 0, room, 8, ctypes.byref(n)) > 0
    out["again"] = calls.decode(e, context, [(2, 1, [0], True)])
    e.llama_free(context)
    return out


def fill(model):
    """Appends tokens until the context is full."""
    e = calls.engine(LLAMA_BIN)
    _, context, memory = calls.open_context(e, model, n_ctx=1024, n_batch=256, n_ubatch=256)
    out = {"n_ctx": e.llama_n_ctx(context)}
    for at in range(0, out["n_ctx"], 256):
        out["code"] = calls.decode(e, context, [(i % 97, i, [0], False) for i in range(at, at + 256)])
        if out["code"]:
            break
    out["tokens"] = e.llama_memory_seq_pos_max(memory, 0) + 1
    return out


class Calls(unittest.TestCase):
    def inside(self, function, kv, model=preload.random_model, **variables):
        done = subprocess.run([sys.executable, "-B", __file__, SO, LLAMA_BIN, "--inside", function.__name__, model()],
                              env=preload.environment(SO, kv, **variables), capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        return json.loads(done.stdout), done.stderr

    def test_bad_paths(self):
        out, said = self.inside(bad_paths, "k4v4")
        self.assertEqual(out, {"decode": 0, "again": 0, "length": 0, "whole": True,
                               **{f"load {n}": 0 for n in ("folder", "missing", "cut", "null")},
                               **{f"save {n}": 0 for n in ("folder", "no folder", "null")},
                               **{f"save all {n}": False for n in ("folder", "no folder", "null")}})
        self.assertIn("is a folder", said)
        for function in ("llama_state_seq_load_file", "llama_state_seq_save_file", "llama_state_save_file"):
            self.assertEqual(said.count(f"tersekv: {function} failed: "), 1, said)

    def test_the_context_that_the_bytes_hold_can_be_filled(self):
        for model in (preload.random_model, preload.windowed_model):
            out, said = self.inside(fill, "k4v4", model, CTX="auto")
            self.assertEqual(out["code"], 0, said)
            self.assertEqual(out["tokens"], out["n_ctx"])
            self.assertGreater(out["n_ctx"], 2048)


if __name__ == "__main__":
    if sys.argv[3:4] == ["--inside"]:
        print(json.dumps(globals()[sys.argv[4]](sys.argv[5])))
    else:
        preload.need(SO, f"{LLAMA_BIN}/llama-server")
        unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
