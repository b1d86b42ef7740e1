#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Profiles, drafts, probes and evaluations on a small random model: small_model_test.py TERSEKV. See cli_test.py."""
import json
import pathlib
import subprocess
import time

import cli_test
from cli_test import COLUMNS, TEXT, tersekv


class WithSmallModel(cli_test.Case):
    """A random model of two layers, which a helper makes (tests/tools): calibration takes seconds."""

    @classmethod
    def setUpClass(cls):
        cli_test.make_small_models(cls)
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
        stopped = subprocess.Popen([cli_test.TERSEKV, *map(str, command)], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
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


if __name__ == "__main__":
    cli_test.main()
