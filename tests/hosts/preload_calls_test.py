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
import urllib.request

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


def shared_tokens(model):
    """Logits of three endings behind a start that belongs to three sequences at once, and behind one of each."""
    e = calls.engine(LLAMA_BIN)
    start, ends = [(7 * i) % 97 + 1 for i in range(150)], [[3, 5, 8], [13, 21], [34, 55, 89, 90]]
    out = {}
    for way in ("at once", "each"):
        _, context, memory = calls.open_context(e, model, n_ctx=2048, n_batch=512, n_ubatch=64, n_seq_max=3, kv_unified=True,
                                                flash_attn_type=0, type_k=0, type_v=0)  # stock: f32
        if way == "at once":  # the start and the ends in one batch, as llama-perplexity's hellaswag has them
            tokens = [(t, i, [0, 1, 2], i == 149) for i, t in enumerate(start)]
        else:
            tokens = [(t, i, [s], i == 149 and s == 0) for s in range(3) for i, t in enumerate(start)]
        tokens += [(t, 150 + i, [s], True) for s, end in enumerate(ends) for i, t in enumerate(end)]
        code = calls.decode(e, context, tokens)
        assert code == 0, code
        rows = [e.llama_get_logits_ith(context, i)[:320] for i, t in enumerate(tokens) if t[3]]
        # A step of one shared token, and one more behind it.
        code = calls.decode(e, context, [(11, 150 + len(ends[0]), [0], True)])
        assert code == 0, code
        out[way] = {"rows": rows + [e.llama_get_logits_ith(context, 0)[:320]],
                    "last": [e.llama_memory_seq_pos_max(memory, s) for s in range(3)]}
        if port := os.environ.get("TERSEKV_STATUS_PORT"):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/status.json", timeout=60) as answer:
                contexts = json.load(answer)["contexts"]
                out[way]["scratch"] = contexts[-1]["bytes"]["scratch"]
    # Refused whole: a sequence that is not there, positions that are not the next ones of each.
    out["codes"] = [calls.decode(e, context, [(1, 154, [0, 3], True)]), calls.decode(e, context, [(1, 154, [0, 1], True)]),
                    calls.decode(e, context, [(1, 154, [0, 2], True)])]
    out["after"] = [e.llama_memory_seq_pos_max(memory, s) for s in range(3)]
    return out


def windows(model):
    """A model with a sliding window of 256 in every second layer, 1,400 tokens: what is kept, going back a little, far,
    and by a checkpoint."""
    e = calls.engine(LLAMA_BIN)
    tokens = [(7 * i * i + i) % 97 + 1 for i in range(1400)]
    out = {}
    for full in (False, True):
        _, context, memory = calls.open_context(e, model, n_ctx=2048, n_batch=100, n_ubatch=100, swa_full=full,
                                                flash_attn_type=0, type_k=0, type_v=0)

        def run(begin, end):
            for at in range(begin, end, 100):
                code = calls.decode(e, context, [(tokens[i], i, [0], True) for i in range(at, min(at + 100, end))])
                assert code == 0, code
            return e.llama_get_logits_ith(context, min(end - at, 100) - 1)[:320]

        def partial():
            size = e.llama_state_seq_get_size_ext(context, 0, 1)
            data = ctypes.create_string_buffer(size)
            assert e.llama_state_seq_get_data_ext(context, data, size, 0, 1) == size
            return data

        now = out["full" if full else "window"] = {"n_ctx": e.llama_n_ctx(context)}
        run(0, 900)
        checkpoint = partial()
        now["checkpoint"] = len(checkpoint)
        now["1400"] = run(900, 1400)
        now["first"] = e.llama_memory_seq_pos_min(memory, 0)
        now["can shift"] = e.llama_memory_can_shift(memory)
        if port := os.environ.get("TERSEKV_STATUS_PORT"):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/status.json", timeout=60) as answer:
                now["layers"] = json.load(answer)["contexts"][-1]["slots"][0]["layers"]
        now["a little"] = e.llama_memory_seq_rm(memory, 0, 1350, -1)
        now["again"] = run(1350, 1400)
        now["far"] = e.llama_memory_seq_rm(memory, 0, 900, -1) if port else None  # stock would do it and forget
        now["last"] = e.llama_memory_seq_pos_max(memory, 0)
        if not full and port:
            read = e.llama_state_seq_set_data_ext(context, checkpoint, len(checkpoint), 0, 1)
            now["restored"] = [read, e.llama_memory_seq_pos_max(memory, 0), e.llama_memory_seq_pos_min(memory, 0)]
            now["from the checkpoint"] = run(900, 1400)
            e.llama_memory_seq_rm(memory, 0, -1, -1)
            calls.decode(e, context, [(5, 0, [0], True)])
            now["stale"] = [e.llama_state_seq_set_data_ext(context, checkpoint, len(checkpoint), 0, 1),
                            e.llama_memory_seq_pos_max(memory, 0)]
        e.llama_free(context)
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

    def test_tokens_of_several_sequences(self):
        for kv, limit in (("f32", 1e-4), ("k4v4", 1e-3)):
            out, said = self.inside(shared_tokens, kv)
            for a, b in zip(out["at once"]["rows"], out["each"]["rows"], strict=True):
                scale = max(map(abs, b))
                self.assertLess(max(abs(x - y) for x, y in zip(a, b, strict=True)), limit * scale, kv)
            self.assertEqual(out["at once"]["last"], out["each"]["last"])
            self.assertEqual(out["each"]["last"], [153, 151, 153])
            self.assertEqual(out["codes"], [-1, -1, 0], said)
            self.assertEqual(out["after"], [154, 151, 154])

    def test_sliding_windows(self):
        stock, _ = self.inside(windows, None, preload.windowed_model)
        for kv, limit in (("f32", 2e-4), ("k8v8", 0.1), ("k4v4", None)):
            out, said = self.inside(windows, kv, preload.windowed_model, STATUS_PORT=preload.free_port())
            window, full = out["window"], out["full"]
            scale = max(map(abs, stock["window"]["1400"]))
            if limit:
                for way in ("1400", "again"):
                    worst = max(abs(a - b) for a, b in zip(window[way], stock["window"][way], strict=True))
                    self.assertLess(worst, limit * scale, (kv, way))
            self.assertEqual(window["1400"], full["1400"], "a window gives back what nobody sees")
            # As far back as a window and 64 tokens go, rounded to a page.
            self.assertTrue(900 < window["first"] <= 1400 - 256 - 64, window["first"])
            self.assertEqual(full["first"], 0)
            self.assertEqual((window["can shift"], full["can shift"]), (stock["window"]["can shift"], True))
            self.assertLess(window["layers"][0], 0.5 * full["layers"][0], "every second layer has a window")
            self.assertEqual(window["layers"][1], full["layers"][1])
            self.assertEqual((window["a little"], full["a little"]), (True, True))
            # What the windowed layers have lost is refused, and nothing has changed; a checkpoint brings it back.
            self.assertEqual((window["far"], window["last"]), (False, 1399), said)
            self.assertEqual((full["far"], full["last"]), (True, 899))
            self.assertGreater(window["checkpoint"], 1000)
            self.assertLess(full["checkpoint"], 100)
            self.assertEqual(window["restored"][:2], [window["checkpoint"], 899], said)
            self.assertTrue(500 < window["restored"][2] <= 900 - 256 - 64)
            self.assertEqual(window["from the checkpoint"], window["1400"], "bit for bit")
            self.assertEqual(window["stale"], [0, 0])
            self.assertIn("does not begin with any more", said)

    def test_copies_of_their_rows_are_counted(self):
        out, said = self.inside(shared_tokens, "f32", STATUS_PORT=preload.free_port())
        more = out["at once"]["scratch"] - out["each"]["scratch"]
        # Passes of 64 tokens of three sequences, by worker, and the answers; the other way has none.
        self.assertGreater(more, 4 * 3 * 64 * 256, said)

    def test_tokens_of_several_sequences_are_those_of_stock(self):
        stock, _ = self.inside(shared_tokens, None)
        ours, _ = self.inside(shared_tokens, "f32")
        for a, b in zip(stock["at once"]["rows"], ours["at once"]["rows"], strict=True):
            self.assertLess(max(abs(x - y) for x, y in zip(a, b, strict=True)), 2e-4 * max(map(abs, a)))


if __name__ == "__main__":
    if sys.argv[3:4] == ["--inside"]:
        print(json.dumps(globals()[sys.argv[4]](sys.argv[5])))
    else:
        preload.need(SO, f"{LLAMA_BIN}/llama-server")
        unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
