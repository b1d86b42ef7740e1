#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/serve_load.py on a small model for some seconds: serve_load_test.py PRELOAD LLAMA_BIN [TEST...]."""
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import preload

SO, LLAMA_BIN = sys.argv[1:3]
del sys.argv[1:3]
SERVER = f"{LLAMA_BIN}/llama-server"
SCRIPT = preload.ROOT / "scripts/serve_load.py"
preload.need(SO, SERVER)
MODEL = preload.random_model()
SHAPE = f"{SERVER} -m {MODEL} -np 3 -c 3072 -kvu -b 256 -ub 128 -t 2"


def load(folder, *runs, minutes=0.15, **more):
    command = [sys.executable, SCRIPT, "--text", preload.ROOT / "LICENSE", "--minutes", minutes, "--clients", 4, "--shortest", 40,
               "--longest", 400, "--generate", 12, "--pool", 3, "--hang-up-share", 0.3, "--growth", 1000, "--json", f"{folder}/out.json",
               "--logs", folder]
    for run in runs:
        command += ["--run", run]
    for name, value in more.items():
        command += [f"--{name.replace('_', '-')}", value]
    done = subprocess.run([str(c) for c in command], env=preload.environment(), capture_output=True, text=True, timeout=300)
    out = pathlib.Path(folder, "out.json")
    return done, json.loads(out.read_text())["rows"] if out.exists() else None


class ServeLoad(unittest.TestCase):
    def test_packed_and_stock(self):
        with tempfile.TemporaryDirectory() as folder:
            done, rows = load(folder, f"packed=LD_PRELOAD={SO} TERSEKV_KV=k4v4 {SHAPE}", f"stock={SHAPE}")
            self.assertEqual(done.returncode, 0, done.stderr[-3000:])
            self.assertEqual([r["name"] for r in rows], ["packed", "stock"])
            self.assertIn("packed as k4v4", pathlib.Path(folder, "packed.log").read_text())
            self.assertNotIn("tersekv:", pathlib.Path(folder, "stock.log").read_text())
            for row in rows:
                self.assertGreater(row["requests"], 10)
                self.assertGreater(row["hung_up"], 0)
                self.assertEqual((row["failed"], row["died"], row["exit_code"]), (0, None, 0))
                self.assertGreater(row["greedy_repeats"], 0)
                self.assertTrue(0 < row["first_p50"] <= row["total_p50"])
                self.assertLessEqual(row["total_p50"], row["total_p99"])
                self.assertGreater(row["rss_start_mib"], 10)
                self.assertGreater(len(row["rss_mib"]), 20)
                self.assertIn(f"| {row['name']} | {row['requests']} |", done.stdout)

    def test_a_server_that_dies_is_a_failure(self):
        with tempfile.TemporaryDirectory() as folder:
            done, rows = load(folder, f"dies=timeout -s KILL 4 {SHAPE}", minutes=1)
            self.assertEqual(done.returncode, 1)
            self.assertIn("dies: the server ended by itself with code ", done.stderr)
            self.assertLess(rows[0]["seconds"], 30)
            done, rows = load(folder, "none=false")
            self.assertEqual((done.returncode, rows), (1, []))
            self.assertIn("none: the server ended with code 1 before it served", done.stderr)

    def test_requests_that_fail_are_counted(self):
        with tempfile.TemporaryDirectory() as folder:  # prompts are longer than the context
            done, rows = load(folder, f"short={SERVER} -m {MODEL} -np 1 -c 256 -b 256 -t 2", shortest=300)
            self.assertEqual(done.returncode, 1)
            self.assertGreater(rows[0]["failed"], 0)
            self.assertIn("HTTP 400", rows[0]["failures"][0])

    def test_growth_is_from_the_third_quarter_to_the_last(self):
        spec = importlib.util.spec_from_file_location("serve_load", SCRIPT)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.assertEqual(module.growth([1, 2, 3, 4, 100, 100, 110, 110]), 10.0)
        self.assertEqual(module.growth([5, 9, 100, 90]), -10.0)
        self.assertIsNone(module.growth([1]))
        self.assertEqual([module.percentile(range(1, 101), p) for p in (.5, .99)], [51, 100])
        self.assertIsNone(module.percentile([], .5))

    def test_wrong_arguments(self):
        for run in ("no command", "x="):
            done, _ = load("/nowhere", run)
            self.assertEqual(done.returncode, 2)
            self.assertIn("write NAME=COMMAND", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
