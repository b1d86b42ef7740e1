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
import time
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
        for command in ("run", "eval", "calibrate", "probe", "inspect", "bench", "codecs", "dump-kv", "doctor"):
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


class WithSmallModel(Case):
    """A random model of two layers, which a helper makes (tests/tools): calibration takes seconds."""

    @classmethod
    def setUpClass(cls):
        make_small_models(cls)
        cls.small, cls.other = cls.folder / "small.gguf", cls.folder / "other.gguf"
        cls.text, cls.profile = cls.folder / "text", cls.folder / "small.tkvp"
        cls.text.write_text(TEXT)
        cls.made = tersekv("calibrate", "-m", cls.small, "--text", cls.text, "--tokens", "1000", "--bits", "3,4",
                           "--kl-contexts", "1", "--kl-context", "300", "-o", cls.profile, "--json",
                           cls.folder / "table.json")

    def test_calibrate(self):
        self.assertEqual(self.made.returncode, 0, self.made.stderr)
        self.assertRegex(self.made.stderr, r"run (\d+) of \1: done")
        self.assertIn("K bits by layer", self.made.stdout)
        rows = json.loads((self.folder / "table.json").read_text())["rows"]
        self.assertEqual([row["bits"] for row in rows], [3, 4])
        for row in rows:
            self.assertLessEqual(row["measured_kl"], row["uniform_kl"])
            self.assertEqual(len(row["k_bits"]), len(row["v_bits"]))

    def test_inspect(self):
        text = self.ok("inspect", self.profile).stdout
        for word in ("random llama", "fingerprint", "interleaved", "recommended_spec", "bytes/token"):
            self.assertIn(word, text)
        row = json.loads(self.ok("inspect", self.profile, "--json").stdout)["rows"][0]
        self.assertEqual([entry["bits"] for entry in row["byte_budget_table"]], [3, 4])
        cut = self.folder / "cut.tkvp"
        cut.write_bytes(self.profile.read_bytes()[:-100])
        self.refused(1, ["cut.tkvp"], "inspect", cut)

    def test_run_with_a_profile(self):
        run = ("run", "-m", self.small, "-p", TEXT[:600], "-n", "3", "--temp", "0", "--no-chat", "--ctx", "1024")
        self.assertIn("k4v4+mean=profile, ", self.ok(*run, "--profile", self.profile).stderr)
        self.assertIn("bits=4, ", self.ok(*run, "--profile", self.profile, "--bits", "4").stderr)
        self.assertIn("bits=3, ", self.ok(*run, TERSEKV_PROFILE=str(self.profile), TERSEKV_BITS="3").stderr)
        self.assertIn("+mean=profile, ", self.ok(*run, "--profile", self.profile, "--kv", "auto").stderr)
        self.refused(1, ["5 bits", "3, 4"], *run, "--profile", self.profile, "--bits", "5")
        other = tersekv("run", "-m", self.other, "-p", "x", "--profile", self.profile)
        self.assertEqual((other.returncode, other.stdout), (2, ""))
        self.assertRegex(other.stderr, r"profile is of .*random llama.*the model is .*random llama")

    def test_run_with_drafts(self):
        run = ("run", "-m", self.small, "-p", TEXT[:900], "--no-chat", "--ctx", "1024", "-n", "120", "--threads", "1")
        for args in (("--kv", "k4v4"), ("--kv", "kivi-k4v4"), ("--temp", "0.3", "--seed", "4")):
            plain, drafted = (json.loads(self.ok(*run, *args, "--spec-lookup", n, "--json").stdout)["rows"][0]
                              for n in (0, 7))
            for key in ("text", "stop", "tokens", "context", "kv_bytes_used"):
                self.assertEqual(drafted[key], plain[key], f"{key}, {args}")
            self.assertEqual(drafted["passes"] + drafted["accepted"], plain["passes"])
            self.assertTrue(drafted["accepted"] > 40 or args[0] == "--temp")
        self.refused(2, ["--spec-lookup 40", "--ubatch is 32"], *run, "--spec-lookup", "40", "--ubatch", "32")

    def test_eval_compares_with_and_without(self):
        kv = "k4v4,k4v4+mean=profile,bits=3,auto"
        rows = json.loads(self.ok("eval", "-m", self.small, "--text", self.text, "--ctx", "300", "--tokens", "150",
                                  "--profile", self.profile, "--kv", kv, "--bits", "4", "--json", "-",
                                  "--quiet").stdout)["rows"]
        specs = [row["spec"] for row in rows]
        self.assertEqual(specs[:4] + specs[5:], ["f16", "k4v4", "k4v4+mean=profile", "bits=3", "bits=4"])
        self.assertLessEqual(rows[3]["bits_spec"], 3.5 + 1e-9)  # 3 and a scale of 16 bits a row of 32
        self.refused(2, ["bits=9"], "eval", "-m", self.small, "--text", self.text, "--kv", "bits=9", "--profile",
                     self.profile)

    def test_eval_goes_on_after_a_stop(self):
        state, out = self.tmp / "state", self.tmp / "eval.json"
        command = ["eval", "-m", self.small, "--text", self.text, "--ctx", "32", "--tokens", "600", "--kv",
                   "k4v4,k2v2", "--json", out, "--resume", state]
        self.ok(*command[:-2])
        whole = json.loads(out.read_text())["rows"]
        out.unlink()
        stopped = subprocess.Popen([TERSEKV, *map(str, command)], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        while not state.exists() and stopped.poll() is None:
            time.sleep(0.001)
        stopped.kill()
        stopped.wait()
        self.assertTrue(state.exists() and not out.exists(), "killed too late to see anything")
        kept = state.read_text()
        self.refused(2, [str(state), "its context is 32, this one's is 48"],
                     *("48" if word == "32" else word for word in command), "--quiet")
        self.refused(2, ["its caches is"], *("k4v4" if word == "k4v4,k2v2" else word for word in command), "--quiet")
        for broken in (kept[:-9], "[]", kept.replace('"done":', '"done":-'), kept.replace('"nll":[', '"nll":[1,', 1)):
            state.write_text(broken)
            self.refused(1, [str(state), "delete it"], *command, "--quiet")
            self.assertEqual(state.read_text(), broken)
        state.write_text(kept)
        done = self.ok(*command)
        self.assertRegex(done.stderr, "goes on after context [0-9]+ of [0-9]+")
        self.assertFalse(state.exists())
        resumed = json.loads(out.read_text())["rows"]
        self.assertEqual(len(resumed), 3)
        for one, other in zip(whole, resumed):
            for column in set(COLUMNS) - {"decode_tps", "prefill_tps"}:
                self.assertEqual(one[column], other[column], column)

    def test_auto_calibrate_once(self):
        run = ("run", "-m", self.small, "-p", "x", "-n", "1", "--no-chat", "--ctx", "256", "--auto-calibrate", "--kv",
               "auto")
        env = {"TERSEKV_CACHE_DIR": str(self.tmp)}
        first = self.ok(*run, "--calibration-text", self.text, **env)
        self.assertIn("calibrating", first.stderr)
        kept = list((self.tmp / "profiles").glob("*.tkvp"))
        self.assertEqual(len(kept), 1)
        self.assertNotIn("calibrating", self.ok(*run, "--calibration-text", self.text, **env).stderr)
        other = self.tmp / "other.txt"
        other.write_text(pathlib.Path(self.text).read_text() + " One more sentence.")
        self.assertIn("calibrating", self.ok(*run, "--calibration-text", other, **env).stderr)
        self.assertEqual(len(list((self.tmp / "profiles").glob("*.tkvp"))), 2)
        self.assertNotIn("calibrating", self.ok(*run, "--calibration-text", self.text, **env).stderr)
        kept[0].write_bytes(b"damaged")
        self.assertIn("made again", self.ok(*run, "--calibration-text", self.text, **env).stderr)

    def test_probe(self):
        svg = self.tmp / "probe.svg"
        args = ("probe", "-m", self.small, "--text", self.text, "--tokens", "1000")
        text = self.ok(*args, "--svg", svg).stdout
        for word in ("|K|/|V|", "recommended, quality first: k", "recommended, balanced: k", "  - "):
            self.assertIn(word, text)
        self.assertTrue(svg.read_text().startswith("<svg ") and svg.read_text().endswith("</svg>\n"))
        rows = json.loads(self.ok(*args, "--json").stdout)["rows"]
        self.assertEqual([row["mode"] for row in rows[-2:]], ["quality", "balanced"])
        self.ok("probe", "--profile", self.profile)


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
