#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`tersekv exec` and `serve` around programs of llama.cpp: serve_test.py TERSEKV LLAMA_BIN PRELOAD [TEST...]."""
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "hosts"))
import preload  # noqa: E402

TERSEKV, BIN, OBJECT = map(pathlib.Path, sys.argv[1:4])


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

    def test_flags_become_variables(self):
        shown = 'echo "$TERSEKV_DRIFT $TERSEKV_DRIFT_LIMIT $TERSEKV_PREFIX."'
        done = tersekv("exec", "--drift", "64", "--drift-limit", "0.25", "--prefix", "off", "--", "sh", "-c", shown)
        self.assertEqual((done.returncode, done.stdout), (0, "64 0.25 off.\n"), done.stderr)
        self.assertEqual(tersekv("exec", "--drift", "0", "--", "sh", "-c", shown).stdout, "0  .\n")
        self.assertEqual(tersekv("exec", "--", "sh", "-c", shown).stdout, "  .\n")
        self.assertEqual(tersekv("exec", "--prefix", "1000", "--", "sh", "-c", shown).stdout, "  1000.\n")
        for flag, value in (("--drift", "-1"), ("--drift", "often"), ("--drift-limit", "0"), ("--prefix", "maybe"),
                            ("--prefix", "0")):
            done = tersekv("exec", flag, value, "--", "true")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(flag, done.stderr)

    def test_drift_is_checked(self):
        done = tersekv("exec", "--drift", "1", "--drift-limit", "1e-6", "--", BIN / "llama-bench", "-m",
                       preload.random_model(), "-p", "0", "-n", "8", "-d", "400", "-r", "1", "-t", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("tersekv: drift: attention over 16 packed tokens", done.stderr)

    def test_profiles(self):
        bench = ["--", BIN / "llama-bench", "-p", "64", "-n", "4", "-r", "1", "-t", "1", "-m"]
        with tempfile.TemporaryDirectory() as folder:
            text, profile = pathlib.Path(folder, "text"), pathlib.Path(folder, "p.tkvp")
            text.write_text(preload.TEXT[:6000])
            made = tersekv("calibrate", "-m", preload.random_model(), "--text", text, "-o", profile, "--tokens", "1024",
                           "--bits", "4", "--kl-contexts", "1", "--kl-context", "256", "--threads", "2")
            self.assertEqual(made.returncode, 0, made.stderr)
            done = tersekv("exec", "--kv", "k4v4", "--profile", profile, *bench, preload.random_model())
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"packed as k4v4+mean=profile (4.25 bits a value with scales), profile {profile}", done.stderr)
            done = tersekv("exec", "--kv", "k4v4", "--profile", profile, "--bits", "4", *bench, preload.random_model())
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("with 4 bits on average", done.stderr)
            # Of another model, of other bits, cut off: no context, and a line that says why.
            for words, model, more in ((["refused: ", "model"], preload.windowed_model(), []),
                                       (["TERSEKV_BITS=3", "4"], preload.random_model(), ["--bits", "3"])):
                done = tersekv("exec", "--kv", "k4v4", "--profile", profile, *more, *bench, model)
                self.assertNotEqual(done.returncode, 0, done.stderr)
                for word in words:
                    self.assertIn(word, done.stderr)
            profile.write_bytes(profile.read_bytes()[:-1])
            done = tersekv("exec", "--kv", "k4v4", "--profile", profile, *bench, preload.random_model())
            self.assertNotEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"TERSEKV_PROFILE={profile}", done.stderr)

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

    def started(self, *arguments, **how):
        """(server, its port, what it said until it served)"""
        port = preload.free_port()
        command = [TERSEKV, "serve", "-m", preload.random_model(), "--kv", "k4v4", "--port", port, "--slots", "2",
                   "--server", BIN / "llama-server", "--ctx", "1024", *arguments, "--", "-t", "2"]
        server = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                  env=preload.environment(), **how)
        self.addCleanup(server.stderr.close)
        self.addCleanup(server.kill)
        lines = []
        for line in server.stderr:
            lines.append(line)
            if "tersekv: serving" in line:
                break
        self.assertIn(f":{port} ", lines[-1], "".join(lines))
        return server, port, "".join(lines)

    def healthy(self, port, host="127.0.0.1"):
        with urllib.request.urlopen(f"http://{host}:{port}/health", timeout=60) as answer:
            return answer.status == 200

    def test_programs_that_cannot_be_packed(self):
        server = bytearray((BIN / "llama-server").read_bytes())
        with tempfile.TemporaryDirectory() as folder:
            def program(name, data):
                path = pathlib.Path(folder, name)
                path.write_bytes(data)
                path.chmod(0o755)
                return path

            other = bytearray(server)
            other[18:20] = (183 if server[18] != 183 else 62).to_bytes(2, "little")  # e_machine
            self.refused(1, ["other", "aarch64", "x86-64"], "exec", "--", program("other", other))
            static = bytearray(server)
            first, size, count = (int.from_bytes(static[at:at + n], "little") for at, n in ((32, 8), (54, 2), (56, 2)))
            for i in range(first, first + size * count, size):
                if static[i:i + 4] == (3).to_bytes(4, "little"):  # PT_INTERP
                    static[i:i + 4] = bytes(4)
            self.refused(1, ["statically", "BUILD_SHARED_LIBS"], "exec", "--", program("static", static))
            true = pathlib.Path(shutil.which("true")).read_bytes()
            inside = program("inside", true + b"\0" * (1 << 20) + b"14llama_memory_i\0")
            self.refused(1, ["inside", "linked into it", "BUILD_SHARED_LIBS"], "exec", "--", inside)
            self.refused(1, ["linked into it"], "serve", "-m", preload.random_model(), "--server", inside)
            self.refused(1, ["no program"], "exec", "--", program("empty", b""))
            done = tersekv("exec", "--", program("without", true))
            self.assertEqual(done.returncode, 0)
            self.assertRegex(done.stderr, r"note: \S+/without brings no libllama")
            self.assertNotIn("note:", tersekv("exec", "--", BIN / "llama-bench", "--help").stderr)

    def test_a_folder_that_ld_preload_cannot_name(self):
        for name in ("a b", "a:b", "a$b"):
            with tempfile.TemporaryDirectory(suffix=name) as folder:
                for file in (TERSEKV, OBJECT):
                    shutil.copy(file, folder)
                done = subprocess.run([f"{folder}/tersekv", "exec", "--", "true"], capture_output=True, text=True,
                                      env=preload.environment())
                self.assertEqual(done.returncode, 1, done.stderr)
                for word in (f"{folder}/libtersekv_preload.so", "another folder"):
                    self.assertIn(word, done.stderr)

    def test_hang_up_is_ignored_under_nohup(self):
        server, port, _ = self.started(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        children = pathlib.Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        for process in (server.pid, *map(int, children)):
            os.kill(process, signal.SIGHUP)
        time.sleep(0.3)
        self.assertTrue(self.healthy(port))
        server.terminate()
        self.assertEqual(server.wait(30), 0)

    def test_all_addresses(self):
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            self.skipTest("this machine has no IPv6")
        server, port, said = self.started("--host", "::")
        self.assertIn(f"//[::1]:{port} ", said)
        self.assertTrue(self.healthy(port, "[::1]"))
        server.terminate()
        self.assertEqual(server.wait(30), 0)

    def test_serve(self):
        server, port, said = self.started("--status-port", "0")
        self.assertIn("k4v4", said)
        status = re.search(r"tersekv: status at (\S+) ", said)[1]
        with urllib.request.urlopen(status + "metrics", timeout=60) as answer:
            self.assertIn('tersekv_contexts_total{result="packed"} 1\n', answer.read().decode())
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
    unittest.main(argv=sys.argv[:1] + sys.argv[4:], verbosity=2)
