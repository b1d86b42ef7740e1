#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Saved sessions end to end: sessions_test.py TERSEKV. See cli_test.py."""
import json

import cli_test
from cli_test import TEXT


class Sessions(cli_test.Case):
    @classmethod
    def setUpClass(cls):
        cli_test.make_small_models(cls)
        cls.small, cls.other = cls.folder / "small.gguf", cls.folder / "other.gguf"

    def test_sessions(self):
        saved = self.folder / "saved.tkvs"
        run = ("run", "-m", self.small, "-p", TEXT[:600], "--temp", "0", "--no-chat", "--ctx", "1024", "--kv", "k4v4")
        fresh = self.ok(*run, "-n", "8").stdout
        self.ok(*run, "-n", "0", "--save-session", saved)
        text = self.ok("inspect", saved).stdout
        for word in ("random llama", "fingerprint", "k4v4", "every checksum fits"):
            self.assertIn(word, text)
        row = json.loads(self.ok("inspect", saved, "--json").stdout)["rows"][0]
        again = self.ok(*run, "-n", "8", "--session", saved, "--json", self.folder / "again.json",
                        "--save-session", self.folder / "more.tkvs")
        self.assertEqual(again.stdout, fresh)
        used = json.loads((self.folder / "again.json").read_text())["rows"][0]
        self.assertEqual(used["prompt_tokens_reused"], row["tokens"] - 1)
        self.assertEqual(used["prompt_tokens"], row["tokens"])
        more = json.loads(self.ok("inspect", self.folder / "more.tkvs", "--json").stdout)["rows"][0]
        self.assertEqual(more["tokens"], row["tokens"] + used["tokens"] - 1)
        # Another text that begins alike; another model; other bits; a damaged file; the engine's own cache.
        self.assertRegex(self.ok("run", "-m", self.small, "-p", TEXT[:300] + "!!", "--temp", "0", "--no-chat", "--ctx",
                                 "1024", "--session", saved, "-n", "2").stderr, r"[1-9]\d* of its \d+ tokens are used")
        self.refused(2, ["weights"], "run", "-m", self.other, "-p", "x", "--no-chat", "--session", saved)
        self.refused(2, ["k4v4", "k3v3"], *run[:-1], "k3v3", "--session", saved)
        self.refused(1, ["session"], *run[:-1], "stock-f16", "--session", saved)
        # The answer and its figures are there although nothing could be saved.
        done = cli_test.tersekv(*run[:-1], "stock-f16", "-n", "2", "--save-session", self.folder / "no.tkvs", "--json")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(json.loads(done.stdout)["rows"][0]["tokens"], 2)
        self.assertIn("session", done.stderr)
        damaged = bytearray(saved.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        (self.folder / "damaged.tkvs").write_bytes(damaged)
        self.refused(1, ["checksum"], *run, "--session", self.folder / "damaged.tkvs")
        self.refused(1, ["checksum"], "inspect", self.folder / "damaged.tkvs")


if __name__ == "__main__":
    cli_test.main()
