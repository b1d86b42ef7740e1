#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""End to end: cli_test.py TERSEKV [MODEL]. Standard library only.

What needs a model is skipped with a message when there is none: MODEL, else $TERSEKV_TEST_MODEL, else where
scripts/setup.sh puts the demo model.
"""
import csv
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TERSEKV = ""
MODEL = ""
CACHE = pathlib.Path(os.environ.get("TERSEKV_CACHE_DIR") or pathlib.Path(
    os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "tersekv")
COLUMNS = ("spec bits_spec bits_effective kv_bytes_used kv_bytes_reserved kv_bytes_f16 ratio ppl dppl kl_mean "
           "kl_median kl_p99 kl_max top1 first_divergence decode_tps prefill_tps tokens context prefill").split()
ENVELOPE = ["rows", "tersekv_version", "commit", "machine", "date"]
TEXT = "".join(f"On day {i} the keeper of the lighthouse wrote {i * i % 97} lines about ships, wind and rain.\n"
               for i in range(120))


def tersekv(*args, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TERSEKV_")} | env
    return subprocess.run([TERSEKV, *map(str, args)], capture_output=True, text=True, env=clean, timeout=300)


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tmp = pathlib.Path(folder.name)

    def ok(self, *args, **env):
        done = tersekv(*args, **env)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def refused(self, code, words, *args, **env):
        """Exit code, one line on stderr, nothing on stdout, and the words in the line."""
        done = tersekv(*args, **env)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertRegex(done.stderr, r"\Aerror: [^\n]+\n\Z")
        for word in words:
            self.assertIn(word, done.stderr)


class WithoutModel(Case):
    def test_version_and_help(self):
        self.assertRegex(self.ok("--version").stdout, r"^tersekv \d+\.\d+\.\d+ \(.+\)\n$")
        for command in ("run", "eval", "calibrate", "probe", "inspect", "bench", "codecs", "dump-kv", "doctor", "plan",
                        "serve", "exec"):
            self.assertIn(f"tersekv {command}", self.ok(command, "--help").stdout)

    def test_usage(self):
        self.refused(2, ["no command", "--help"])
        self.refused(2, ["unknown command 'frobnicate'", "doctor"], "frobnicate")
        self.refused(2, ["--nonsense", "tersekv run --help"], "run", "--nonsense")
        self.refused(2, ["--threads", "many"], "run", "--threads", "many")
        self.refused(2, ["-n", "-3"], "run", "-n", "-3")
        self.refused(2, ["TERSEKV_CTX", "far"], "run", "-p", "x", TERSEKV_CTX="far")
        self.refused(2, ["-m MODEL"], "run", "-p", "x")
        self.refused(2, ["prompt is empty", "-p"], "run", "-p", "", "-m", "none.gguf")
        self.refused(2, ["prompt is empty"], "run", "-p", " \n", "-m", "none.gguf")
        self.refused(2, ["--text"], "eval", "-m", "none.gguf")
        self.refused(2, ["--kv-bytes", "64X"], "run", "-p", "x", "-m", "none.gguf", "--kv-bytes", "64X")

    def test_plan_refuses(self):
        plan = ("plan", "-m", "none.gguf")
        self.refused(2, ["--memory 8G"], *plan)
        self.refused(2, ["--slots", "'x'"], *plan, "--memory", "8G", "--slots", "1,x")
        self.refused(2, ["--contexts", "'0'"], *plan, "--memory", "8G", "--contexts", "0")
        self.refused(2, ["k9v4"], *plan, "--memory", "8G", "--kv", "k9v4")
        self.refused(1, ["none.gguf"], *plan, "--memory", "8G")

    def test_specs(self):
        run = ("run", "-m", "none.gguf", "-p", "x", "--kv")
        self.refused(2, ["k4w4", "k4v4"], *run, "k4w4")
        self.refused(2, ["1", "k1v4", "2 to 8"], *run, "k1v4")
        self.refused(2, ["9", "k9v4", "2 to 8"], *run, "k9v4")
        self.refused(2, ["auto", "--profile"], *run, "auto")
        self.refused(2, ["stock-q3", "stock-q4_0"], *run, "stock-q3")
        self.refused(2, ["k9v4"], "run", "-m", "none.gguf", "-p", "x", TERSEKV_KV="k9v4")
        (self.tmp / "t").write_text(TEXT)
        self.refused(2, ["k4v4,,", "empty"], "eval", "-m", "none.gguf", "--text", self.tmp / "t", "--kv", "k4v4,,")

    def test_profiles_are_asked_for(self):
        run = ("run", "-m", "none.gguf", "-p", "x")
        self.refused(2, ["auto", "--profile", "--auto-calibrate", "tersekv calibrate"], *run, "--kv", "auto")
        self.refused(2, ["mean=profile", "--profile"], *run, "--kv", "k4v4+mean=profile")
        self.refused(2, ["--bits 4", "--profile"], *run, "--bits", "4")
        self.refused(2, ["TERSEKV_BITS"], *run, TERSEKV_BITS="9")
        self.refused(2, ["-o PROFILE"], "calibrate", "-m", "none.gguf")
        self.refused(2, ["'x'", "2 to 8"], "calibrate", "-m", "none.gguf", "-o", self.tmp / "p", "--bits", "4,x")
        (self.tmp / "short").write_bytes(b"no profile")
        self.refused(1, ["short"], *run, "--profile", self.tmp / "short")

    def test_missing_files(self):
        self.refused(1, ["none.gguf"], "run", "-m", "none.gguf", "-p", "x")
        self.refused(1, ["none.txt"], "run", "-m", "none.gguf", "--file", "none.txt")
        self.refused(1, ["none.txt"], "eval", "-m", "none.gguf", "--text", "none.txt")
        self.refused(1, ["none.tkvp"], "run", "-m", "none.gguf", "-p", "x", "--profile", "none.tkvp")
        self.refused(1, ["none.tkvp"], "inspect", "none.tkvp")
        self.refused(1, ["none.gguf"], "probe", "-m", "none.gguf")
        self.refused(1, ["none.gguf"], "calibrate", "-m", "none.gguf", "-o", self.tmp / "p")
        self.refused(1, ["no/folder"], "run", "-m", "none.gguf", "-p", "x", "--json", "no/folder/a.json")

    def test_bench_attend(self):
        out = self.tmp / "attend.json"
        args = ("bench", "attend", "--layers", "2", "--kv-heads", "2", "--depths", "0,300", "--repeat", "2")
        done = self.ok(*args, "--kv", "k4v4,f16", "--peer", "f16,q8_0", "--json", out)
        result = json.loads(out.read_text())
        self.assertEqual(list(result), ENVELOPE)
        rows = result["rows"]
        names = ["k4v4", "f16", "stock-f16", "stock-q8_0"]
        self.assertEqual([(row["depth"], row["spec"]) for row in rows], [(d, n) for d in (0, 300) for n in names])
        for row in rows:
            self.assertEqual(row["shape"], "2x2x4x64")
            self.assertGreater(row["us_chain"], 0)
            self.assertLessEqual(row["us_chain_low"], row["us_chain"])
            self.assertAlmostEqual(row["us_chain"], 2 * row["us"])
            self.assertAlmostEqual(row["ratio"], row["peer_us"] / row["us"])
            self.assertIn(row["spec"], done.stdout)
        best = max(row["ratio"] for row in rows if row["spec"].startswith("stock-") and row["depth"] == 300)
        self.assertEqual(best, 1)
        alone = json.loads(self.ok(*args, "--peer", "none", "--queries", "20", "--arithmetic", "exact", "--json",
                                   "-").stdout)
        self.assertEqual([(row["peer"], row["ratio"]) for row in alone["rows"]], [("", None), ("", None)])

    def test_bench_refuses(self):
        self.refused(2, ["bench", "--help"], "bench")
        self.refused(2, ["'4k'", "--depths"], "bench", "attend", "--depths", "4k")
        self.refused(2, ["'q3_0'", "q4_0"], "bench", "attend", "--depths", "64", "--peer", "q3_0", "--quiet")
        self.refused(2, ["stock-f16", "--peer"], "bench", "attend", "--kv", "stock-f16")
        self.refused(1, ["head_dim 72", "f16"], "bench", "attend", "--head-dim", "72", "--depths", "64", "--quiet")
        self.refused(2, ["no model"], "bench", "e2e", "--quiet")
        self.refused(2, ["stock-q3_0"], "bench", "e2e", "--peer", "q3_0")

    def test_doctor(self):
        done = self.ok("doctor", TERSEKV_LOG="7")
        self.assertEqual(done.stdout.splitlines()[-1], "verdict: ready")
        self.assertIn("-m MODEL", done.stdout)
        self.assertRegex(done.stdout, r"TERSEKV_LOG +7 \(1 prints")
        checks = json.loads(self.ok("doctor", "--json", "-").stdout)
        self.assertEqual(list(checks), ENVELOPE)
        self.assertEqual(checks["rows"][-1], {"check": "verdict", "state": "ok", "detail": "ready"})
        self.assertRegex(done.stdout, r"attention +32/8 heads of 128: cpu, .*int16.* with k4v4")
        self.assertRegex(done.stdout, r"(?m)^ +cuda +(not in this build|k4v4|no kernel)")
        done = self.ok("doctor", "--kv", "k5v2", "--arithmetic", "fast", "--shape", "14,2,64")
        self.assertRegex(done.stdout, r"14/2 heads of 64: cpu, .*K: 5-bit .*16-bit integers.*V: 2-bit .*8-bit integers")
        done = self.ok("doctor", "--kv", "fp8", "--shape", "32,8,128")
        self.assertIn("decoded to fp32 tiles", done.stdout)
        self.assertRegex(self.ok("doctor", "--shape", "32,5,128").stdout, "attention +32/5 heads of 128: (?!cpu).*heads")
        self.assertIn("llama.cpp's own attention", self.ok("doctor", "--kv", "stock-f16").stdout)
        self.refused(2, ["--shape"], "doctor", "--shape", "32,8")
        done = tersekv("doctor", "-m", "none.gguf")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout.splitlines()[-1], r"^verdict: NOT ready: host: .*none\.gguf")


def make_small_models(cls):
    """Two random models of two layers, small.gguf and other.gguf, in cls.folder."""
    python = os.environ.get("TERSEKV_TEST_PYTHON") or next(map(str, CACHE.glob("venv-gguf-*/bin/python")), "")
    if not os.path.isfile(python):
        raise unittest.SkipTest(f"no Python with the gguf package under {CACHE}: scripts/setup.sh installs it")
    folder = tempfile.TemporaryDirectory()
    cls.addClassCleanup(folder.cleanup)
    cls.folder = pathlib.Path(folder.name)
    make = pathlib.Path(__file__).parents[1] / "tools" / "make_model.py"
    for name, seed in (("small", 1), ("other", 2)):
        subprocess.run([python, make, "random", "--arch", "llama", "--heads", "4", "--kv-heads", "2", "--head-dim",
                        "32", "--seed", str(seed), "--out", cls.folder / f"{name}.gguf"], check=True,
                       capture_output=True)


class ModelCase(Case):
    def setUp(self):
        super().setUp()
        if not os.path.isfile(MODEL):
            self.skipTest(f"no model at {MODEL}: scripts/setup.sh fetches it")


class WithModel(ModelCase):
    def test_damaged_models(self):
        with open(MODEL, "rb") as file:
            half = file.read(os.path.getsize(MODEL) // 2)  # all of its metadata, not all of its weights
        for name, data in (("half.gguf", half), ("short.gguf", half[:1 << 20]), ("tiny.gguf", half[:100]),
                           ("not.gguf", b"no model " * 1000), ("empty.gguf", b"")):
            (self.tmp / name).write_bytes(data)
            self.refused(1, [name], "run", "-m", self.tmp / name, "-p", "x")

    def test_budget_and_context(self):
        self.refused(1, ["8192"], "run", "-m", MODEL, "-p", "x", "--kv-bytes", "1M", "--ctx", "8192")
        self.refused(2, ["context holds 32", "--ctx"], "run", "-m", MODEL, "-p", TEXT, "--ctx", "32")

    def test_run(self):
        args = ("run", "-m", MODEL, "-p", "Count from one to five.", "-n", "8", "--temp", "0", "--ctx", "256")
        first, second = self.ok(*args), self.ok(*args)
        self.assertEqual(first.stdout, second.stdout)
        self.assertTrue(first.stdout.strip())
        figures, hint = first.stderr.splitlines()[-2:]
        self.assertRegex(hint, r"^0 of \d+ tokens are packed: ")  # a short prompt takes more bytes than f16
        self.assertRegex(figures,
                         r"^k4v4, host mode \w+, \d+ threads: prompt \d+ tokens at [\d.]+ t/s, answer \d+ tokens at "
                         r"[\d.]+ t/s .* used, .* as f16 .* bits a value$")
        self.assertEqual(self.ok(*args, "--quiet").stderr, "")
        path = self.tmp / "run.json"
        self.ok(*args, "--json", path)
        row = json.loads(path.read_text())["rows"][0]
        self.assertEqual(row["spec"], "k4v4")
        self.assertEqual(row["text"] + "\n", first.stdout)
        self.assertGreater(row["kv_bytes_used"], 0)
        self.assertIn(row["stop"], ("eos", "length"))
        only_json = json.loads(self.ok(*args, "--json", "-").stdout)
        self.assertEqual(only_json["rows"][0]["text"], row["text"])

    def test_run_samples_with_a_seed(self):
        args = ("run", "-m", MODEL, "-p", "Write a line.", "-n", "12", "--temp", "1.5", "--ctx", "256", "--quiet",
                "--seed")
        self.assertEqual(self.ok(*args, 5).stdout, self.ok(*args, 5).stdout)
        self.assertGreater(len({self.ok(*args, seed).stdout for seed in (5, 6, 7)}), 1)

    def test_run_with_drafts(self):
        args = ("run", "-m", MODEL, "-p", TEXT[:700], "--no-chat", "-n", "60", "--ctx", "512", "--threads", "1")
        drafted = self.ok(*args, "--spec-lookup", "8")
        self.assertEqual(drafted.stdout, self.ok(*args).stdout)
        self.assertRegex(drafted.stderr, r"drafts: \d+ tokens proposed, [1-9]\d* accepted \([\d.]+%\); \d+ forward ")

    def test_run_stock_and_system(self):
        self.ok("run", "-m", MODEL, "-p", "Hello.", "-n", "4", "--kv", "stock-f16", "--ctx", "256", "--system",
                "Be kind.")
        self.refused(2, ["--system"], "run", "-m", MODEL, "-p", "Hello.", "--no-chat", "--system", "x", "--ctx", "256")

    def test_eval(self):
        (self.tmp / "text").write_text(TEXT)
        out, table = self.tmp / "eval.json", self.tmp / "eval.csv"
        done = self.ok("eval", "-m", MODEL, "--text", self.tmp / "text", "--kv", "k4v4,k2v2", "--ctx", "256",
                       "--tokens", "256", "--json", out, "--csv", table)
        result = json.loads(out.read_text())
        self.assertEqual(list(result), ENVELOPE)
        rows = result["rows"]
        self.assertEqual([row["spec"] for row in rows], ["f16", "k4v4", "k2v2"])
        for row in rows:
            self.assertEqual(list(row), COLUMNS)
            self.assertEqual((row["tokens"], row["context"], row["prefill"]), (256, 256, "decode"))
            self.assertGreater(row["decode_tps"], 0)
            self.assertAlmostEqual(row["ratio"], row["kv_bytes_f16"] / row["kv_bytes_used"])
            self.assertIn(f"\n{row['spec']} ", "\n" + done.stdout)
        self.assertEqual((rows[0]["kl_mean"], rows[0]["top1"], rows[0]["first_divergence"]), (0, 1, -1))
        self.assertLess(0, rows[1]["kl_mean"])
        self.assertLess(rows[1]["kl_mean"], rows[2]["kl_mean"])
        self.assertLess(rows[2]["kv_bytes_used"], rows[1]["kv_bytes_used"])
        with open(table, newline="") as file:
            self.assertEqual([row["spec"] for row in csv.DictReader(file)], ["f16", "k4v4", "k2v2"])
        self.refused(2, ["one context of 8192", "--ctx"], "eval", "-m", MODEL, "--text", self.tmp / "text", "--ctx",
                     "8192")

    def test_bench_e2e(self):
        out = self.tmp / "e2e.json"
        self.ok("bench", "e2e", "-m", MODEL, "--kv", "k4v4", "--peer", "f16", "--depths", "0,200", "--repeat", "1",
                "--tokens", "2", "--prefill", "1", "--sequences", "2", "--json", out, "--quiet")
        rows = json.loads(out.read_text())["rows"]
        self.assertEqual([(row["depth"], row["spec"]) for row in rows],
                         [(d, n) for d in (0, 200) for n in ("k4v4", "stock-f16")])
        for row in rows:
            self.assertEqual((row["peer"], row["sequences"], row["prefill"]), ("stock-f16", 2, "decode"))
            self.assertAlmostEqual(row["ratio_token"], row["peer_decode_ms"] / row["decode_ms"])
            self.assertAlmostEqual(row["ratio_prefill"], row["peer_prefill_ms_512"] / row["prefill_ms_512"])
            self.assertEqual(row["decode_attn_ms"] is None, row["depth"] == 0)
        self.refused(1, ["none.gguf"], "bench", "e2e", "-m", "none.gguf", "--quiet")

    def test_doctor(self):
        done = self.ok("doctor", "-m", MODEL)
        self.assertEqual(done.stdout.splitlines()[-1], "verdict: ready")
        self.assertRegex(done.stdout, r"host +mode (custom|overwrite) with k4v4")


def main():
    global TERSEKV, MODEL
    if len(sys.argv) < 2:
        sys.exit("usage: cli_test.py TERSEKV [MODEL]")
    TERSEKV = sys.argv.pop(1)
    MODEL = os.environ.get("TERSEKV_TEST_MODEL") or str(CACHE / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf")
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-") and os.sep in sys.argv[1]:
        MODEL = sys.argv.pop(1)
    unittest.main(verbosity=2)


if __name__ == "__main__":
    main()
