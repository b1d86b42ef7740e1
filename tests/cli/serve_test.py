#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`tersekv exec` and `serve` around programs of llama.cpp: serve_test.py TERSEKV LLAMA_BIN."""
import json
import pathlib
import signal
import socket
import subprocess
import sys
import time
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "hosts"))
import preload  # noqa: E402

TERSEKV, BIN = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])


def tersekv(*args):
    return subprocess.run([str(a) for a in (TERSEKV, *args)], capture_output=True, text=True, timeout=300,
                          env=preload.environment())


class Serve(unittest.TestCase):
    def refused(self, code, words, *args):
        done = tersekv(*args)
        self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)

    def test_exec(self):
        done = tersekv("exec", "--kv", "k4v4", "--", BIN / "llama-bench", "-m", preload.random_model(), "-p", "64", "-n",
                       "8", "-r", "1", "-t", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("k4v4", done.stderr)
        self.assertIn("pp64", done.stdout)
        self.assertEqual(tersekv("exec", "--", "sh", "-c", "exit 7").returncode, 7)

    def test_refusals(self):
        model = preload.random_model()
        self.refused(1, ["no-such-program"], "exec", "--", "no-such-program")
        self.refused(2, ["stock-f16"], "exec", "--kv", "stock-f16", "--", "sh")
        self.refused(2, ["k4v9"], "exec", "--kv", "k4v9", "--", "sh")
        self.refused(1, ["no-such-server"], "serve", "-m", model, "--server", "no-such-server")
        self.refused(1, ["none.gguf"], "serve", "-m", "none.gguf", "--server", BIN / "llama-server")
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            self.refused(2, [str(port), "--port"], "serve", "-m", model, "--server", BIN / "llama-server", "--port", port)

    def test_serve(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [TERSEKV, "serve", "-m", preload.random_model(), "--kv", "k4v4", "--port", port, "--slots", "2",
                   "--server", BIN / "llama-server", "--ctx", "1024", "--", "-t", "2"]
        server = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                  env=preload.environment())
        lines = []
        for line in server.stderr:
            lines.append(line)
            if "tersekv: serving" in line:
                break
        self.assertIn(f":{port} ", lines[-1], "".join(lines))
        self.assertTrue(any("k4v4" in line for line in lines))
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(
            {"prompt": "On day 1", "max_tokens": 4, "temperature": 0}).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            self.assertEqual(json.load(answer)["usage"]["completion_tokens"], 4)
        server.send_signal(signal.SIGINT)
        server.stderr.read()
        self.assertEqual(server.wait(30), 0)
        time.sleep(0.1)
        with self.assertRaises(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=2).close()


if __name__ == "__main__":
    preload.need(BIN / "llama-server", BIN / "llama-bench", TERSEKV)
    unittest.main(argv=sys.argv[:1], verbosity=2)
