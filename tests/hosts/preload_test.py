#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Unmodified llama.cpp programs under libtersekv_preload.so: preload_test.py PRELOAD LLAMA_BIN [TEST...]."""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import preload

SO, LLAMA_BIN = sys.argv[1], sys.argv[2]
del sys.argv[1:3]
PERPLEXITY, BENCH, SERVER = (f"{LLAMA_BIN}/llama-{name}" for name in ("perplexity", "bench", "server"))
preload.need(SO, PERPLEXITY, BENCH, SERVER)
MODEL = str(preload.random_model())


class Symbols(unittest.TestCase):
    def test_object_needs_no_engine_and_shows_only_llama_functions(self):
        listed = subprocess.run(["nm", "-D", SO], check=True, capture_output=True, text=True).stdout
        for line in listed.splitlines():
            kind, name = line.split()[-2:]
            if kind == "U":
                self.assertNotRegex(name, "^(llama|ggml|gguf)_")
            elif kind.isupper():
                self.assertRegex(name, "^llama_")


def whole(test, arguments, env, pattern, count):
    """What llama-perplexity printed that matches, and all of it. It can end on a busy machine before its last lines are
    out, stock too: then once more."""
    for _ in range(8):
        code, said = preload.run([PERPLEXITY, *arguments], env)
        test.assertEqual(code, 0, said[-2000:])
        found = re.findall(pattern, said)
        if len(found) >= count:
            break
    return found, said


class Perplexity(unittest.TestCase):
    def perplexity(self, env, *arguments, model=MODEL):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as text:
            text.write(preload.TEXT[:9000])
            text.flush()
            return whole(self, ["-m", model, "-f", text.name, "-c", 512, "-b", 1024, "--chunks", 4, "-t", 2, *arguments], env,
                         r"\[\d+\](\d+\.\d+)", 4)

    def test_f32_equals_stock_to_four_digits(self):
        stock, _ = self.perplexity(preload.environment(), *preload.STOCK)
        ours, said = self.perplexity(preload.environment(SO, "f32"))
        self.assertIn("packed as f32", said)
        self.assertEqual(len(stock), 4)
        for a, b in zip(stock, ours):
            self.assertAlmostEqual(float(a), float(b), delta=2e-4 * float(a))

    def test_packed_is_near(self):
        stock, _ = self.perplexity(preload.environment(), *preload.STOCK)
        for kv, limit in (("k8v8", 0.01), ("k4v4", 0.15)):
            ours, said = self.perplexity(preload.environment(SO, kv))
            self.assertIn(f"packed as {kv}", said)
            self.assertNotEqual(stock, ours)  # something was packed
            for a, b in zip(stock, ours):
                self.assertAlmostEqual(float(a), float(b), delta=limit * float(a))


class Hellaswag(unittest.TestCase):
    """Tasks in its form: a start, the number of its true ending, four endings; the start is of four sequences at once."""

    def score(self, env, *arguments):
        words = preload.TEXT.split(" ")
        lines = []
        for i in range(12):
            at = [40 * i + 250 * j for j in range(4)]
            lines += [" ".join(words[at[0]:at[0] + 25]), str(i % 4)]
            endings = [" ".join(words[a + 25:a + 33]) for a in at]
            endings[0], endings[i % 4] = endings[i % 4], endings[0]
            lines += endings
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as tasks:
            tasks.write("\n".join(lines) + "\n")
            tasks.flush()
            return whole(self, ["-m", MODEL, "--hellaswag", "-f", tasks.name, "--hellaswag-tasks", 12, "-t", 2, "-c", 2048, "-b",
                                2048, *arguments], env, r"(?m)^(\d+)\s+(\d+\.\d+)%", 12)

    def test_f32_is_stock_and_packed_runs(self):
        stock, said = self.score(preload.environment(), *preload.STOCK)
        self.assertEqual(len(stock), 12, said[-2000:])
        ours, said = self.score(preload.environment(SO, "f32"))
        self.assertIn("packed as f32", said)
        self.assertEqual(ours, stock)
        packed, said = self.score(preload.environment(SO, "k4v4"))
        self.assertIn("packed as k4v4", said)
        self.assertEqual(len(packed), 12, said[-2000:])


class Variables(unittest.TestCase):
    tried = set()

    def bench(self, env, *arguments):
        return preload.run([BENCH, "-m", MODEL, "-p", 32, "-n", 4, "-t", 1, "-r", 1, *arguments], env)

    def test_without_kv_nothing_is_touched(self):
        code, said = self.bench(preload.environment(SO))
        self.assertEqual(code, 0, said)
        self.assertNotIn("tersekv:", said)

    def test_bench_runs_packed(self):
        code, said = self.bench(preload.environment(SO, "k4v4"))
        self.assertEqual(code, 0, said)
        self.assertIn("packed as k4v4 (4.25 bits", said)

    def test_wrong_values_are_said_and_refused(self):
        for variables, names in (
                ({"kv": "k9v9"}, ["TERSEKV_KV=k9v9"]),
                ({"kv": "k4v4", "CTX": "many"}, ["TERSEKV_CTX=many", "auto"]),
                ({"kv": "k4v4", "CTX": "-5"}, ["TERSEKV_CTX=-5"]),
                ({"kv": "k4v4", "KV_BYTES": "lots"}, ["TERSEKV_KV_BYTES=lots", "64M"]),
                ({"kv": "k4v4", "KV_BYTES": "64K"}, ["TERSEKV_KV_BYTES is 65536", "tokens"]),
                ({"kv": "k4v4", "STRICT": "yes"}, ["TERSEKV_STRICT=yes", "0 or 1"]),
                ({"kv": "k4v4", "LOG": "9"}, ["TERSEKV_LOG=9"]),
                ({"kv": "k4v4", "PREFILL": "raw"}, ["TERSEKV_PREFILL=raw", "decode"]),
                ({"kv": "k4v4", "DETERMINISTIC": "x"}, ["TERSEKV_DETERMINISTIC=x"]),
                ({"kv": "k4v4", "PROFILE": "/nowhere.tkvp"}, ["TERSEKV_PROFILE=/nowhere.tkvp"]),
                ({"kv": "k4v4", "BITS": "4"}, ["TERSEKV_BITS=4", "TERSEKV_PROFILE"]),
                ({"kv": "k4v4", "BITS": "4,5"}, ["TERSEKV_BITS=4,5", "3.5"]),
                ({"kv": "k4v4", "STATUS_PORT": "65536"}, ["TERSEKV_STATUS_PORT=65536", "65535"]),
                ({"kv": "k4v4", "STATUS_HOST": "here"}, ["TERSEKV_STATUS_HOST=here", "127.0.0.1"]),
                ({"kv": "k4v4", "PREFIX": "no"}, ["TERSEKV_PREFIX=no", "on or off"]),
                ({"kv": "k4v4", "PREFIX": "0"}, ["TERSEKV_PREFIX=0", "number of tokens"]),
                ({"kv": "k4v4", "DRIFT": "-1"}, ["TERSEKV_DRIFT=-1", "64"]),
                ({"kv": "k4v4", "DRIFT_LIMIT": "0"}, ["TERSEKV_DRIFT_LIMIT=0", "0.3"])):
            with self.subTest(**variables):
                self.tried.update("TERSEKV_" + name.upper() for name in variables)
                code, said = self.bench(preload.environment(SO, **variables))
                self.assertNotEqual(code, 0, said)
                for name in names:
                    self.assertIn(name, said)
        # Every variable of the page, but for one whose wrong values are said and then not used.
        page = (preload.ROOT / "docs/serving.md").read_text()
        rows = re.findall(r"^\| (`TERSEKV_[A-Z_`, ]+) \|", page, re.M)
        self.assertEqual(set(re.findall("TERSEKV_[A-Z_]+", " ".join(rows))), self.tried | {"TERSEKV_FORCE_ISA"})

    def test_drift_is_said_above_the_limit(self):
        for limit, times in (("1e-6", True), ("0.9", False)):
            code, said = preload.run([BENCH, "-m", MODEL, "-p", 0, "-n", 8, "-d", 400, "-t", 1, "-r", 1],
                                     preload.environment(SO, "k4v4", DRIFT=1, DRIFT_LIMIT=limit))
            self.assertEqual(code, 0, said)
            self.assertEqual("tersekv: drift: attention over 16 packed tokens of sequence 0" in said, times, said)

    def test_a_wrong_isa_is_said_and_the_best_is_used(self):
        code, said = self.bench(preload.environment(SO, "k4v4", FORCE_ISA="AVX9"))
        self.assertEqual(code, 0, said)
        self.assertRegex(said, "TERSEKV_FORCE_ISA=AVX9 is not among this machine's targets: .*the best is used")
        self.assertIn("packed as k4v4", said)

    def test_names_that_nothing_reads(self):
        code, said = self.bench(preload.environment(SO, "k4v4", KVBYTES="1G", TEST_X=1))
        self.assertEqual(code, 0, said)
        self.assertEqual(said.count("TERSEKV_KVBYTES is no variable of this version"), 1)
        self.assertNotIn("TERSEKV_TEST_X", said)
        code, said = self.bench(preload.environment(SO, "k4v4", KVBYTES="1G", STRICT=1))
        self.assertNotEqual(code, 0, said)

    def test_embeddings_pass_or_are_refused(self):
        code, said = self.bench(preload.environment(SO, "k4v4"), "-embd", 1)
        self.assertEqual(code, 0, said)
        self.assertIn("not packed, llama.cpp's own cache is used: a context for embeddings", said)
        code, said = self.bench(preload.environment(SO, "k4v4", STRICT=1), "-embd", 1)
        self.assertNotEqual(code, 0, said)
        self.assertIn("refused: a context for embeddings", said)

    def test_a_program_without_llama_is_left_alone(self):
        code, said = preload.run(["/bin/echo", "hello"], preload.environment(SO, "k4v4"))
        self.assertEqual((code, said), (0, "hello\n"))


class Memory(unittest.TestCase):
    def slots(self, kv, *arguments, **variables):
        with preload.Server(SERVER, MODEL, ["-b", 256, *arguments], preload.environment(SO, kv, **variables)) as s:
            return [slot["n_ctx"] for slot in s.get("/slots")], s.said()

    def test_auto_grows_the_context_by_what_packing_saves(self):
        asked, _ = self.slots("k4v4", "-c", 1024, "-np", 1)
        self.assertEqual(asked, [1024])
        grown, said = self.slots("k4v4", "-c", 1024, "-np", 1, CTX="auto")
        self.assertRegex(said, r"f16 would take 1048576 bytes for 1024 tokens")
        self.assertGreater(grown[0], 2.5 * 1024, said[-1500:])
        self.assertLess(grown[0], 16 / 4.25 * 1024)

    def test_a_full_budget_is_an_error_of_the_request(self):
        with preload.Server(SERVER, MODEL, ["-c", 512, "-np", 1, "-b", 256],
                            preload.environment(SO, "k4v4")) as s:
            self.assertEqual(s.complete("x" * 700)["error"]["code"], 400)
            self.assertEqual(len(s.complete("x" * 300)["tokens"]), 24)

    def test_a_slot_file_that_is_a_folder_is_an_error_of_the_request(self):
        with preload.Server(SERVER, MODEL, ["-c", 512, "-np", 1, "-b", 256], preload.environment(SO, "k4v4")) as s:
            pathlib.Path(s.folder, "folder").mkdir()
            for action in ("save", "restore"):
                self.assertIn("error", s.post(f"/slots/0?action={action}", {"filename": "folder"}))
            self.assertEqual(len(s.complete("x" * 30)["tokens"]), 24)
            self.assertIn("is a folder", s.said())


if __name__ == "__main__":
    unittest.main(verbosity=2)
