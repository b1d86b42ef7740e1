#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The status port of libtersekv_preload.so: preload_status_test.py PRELOAD LLAMA_BIN [TEST...]."""
import concurrent.futures
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import preload

SO, LLAMA_BIN = sys.argv[1], sys.argv[2]
del sys.argv[1:3]
SERVER, BENCH = f"{LLAMA_BIN}/llama-server", f"{LLAMA_BIN}/llama-bench"
preload.need(SO, SERVER, BENCH)
MODEL = preload.random_model()
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
COUNTERS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "tersekv_decode_seconds_total",
            "tersekv_attention_seconds_total", "tersekv_calls_total")


def metrics(text):
    """{(name, labels): value}; every line is a comment of the format or a value."""
    out, typed = {}, set()
    for line in text.splitlines():
        if line.startswith("# "):
            kind, name = re.fullmatch(r"# (HELP|TYPE) (\S+) .+", line).groups()
            typed.add((kind, name))
            continue
        name, labels, value = re.fullmatch(r'([a-z_:][a-z0-9_:]*)(\{.*\})? (\S+)', line).groups()
        assert ("TYPE", name) in typed and ("HELP", name) in typed, line
        assert (name, labels) not in out, line
        out[name, labels] = float(value)
    return out


def one(values, name, label=""):
    found = [v for (n, labels), v in values.items() if n == name and label in (labels or "")]
    assert len(found) == 1, (name, label, found)
    return found[0]


class StatusPort(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.port = preload.free_port()
        cls.server = preload.Server(SERVER, MODEL, ["-c", 4096, "-np", 4, "-kvu", "-b", 256, "-ub", 128],
                                    preload.environment(SO, "k4v4", STATUS_PORT=cls.port, DRIFT=4)).__enter__()
        cls.addClassCleanup(cls.server.__exit__)

    def get(self, path, method="GET"):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method=method)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.headers, answer.read().decode()

    def status(self):
        headers, text = self.get("/status.json")
        self.assertEqual(headers["Content-Type"], "application/json")
        (context,) = json.loads(text)["contexts"]
        return context

    def test_where_it_is_is_said(self):
        self.assertIn(f"tersekv: status at http://127.0.0.1:{self.port}/", self.server.said())
        with self.assertRaises(OSError), socket.create_connection((socket.gethostbyname(socket.gethostname()), self.port), 2) as s:
            if s.getpeername()[0].startswith("127."):
                raise OSError("this machine has no other address")

    def test_numbers_are_those_of_the_requests(self):
        before = self.status()
        prompt = self.server.post("/tokenize", {"content": preload.TEXT[:900]})["tokens"]
        self.server.complete(prompt, 20, id_slot=0)
        after = self.status()
        # The last generated token is not run; the prompt's last one may be a call of its own.
        run = sum(after[kind]["tokens"] - before[kind]["tokens"] for kind in ("prompt", "generation"))
        self.assertEqual(run, len(prompt) + 19)
        self.assertIn(after["generation"]["tokens"] - before["generation"]["tokens"], (19, 20))
        slot = next(s for s in after["slots"] if s["id"] == 0)
        self.assertEqual(slot["tokens"], len(prompt) + 19)
        self.assertEqual(len(slot["layers"]), len(set(range(len(slot["layers"])))))
        self.assertAlmostEqual(sum(slot["layers"]), slot["bytes"], delta=4 * slot["tokens"])
        used = after["bytes"]
        self.assertEqual(used["used"], used["pages"] + used["raw"] + used["statistics"] + used["tables"])
        self.assertLessEqual(used["used"], used["budget"])
        self.assertAlmostEqual(after["ratio"], used["f16"] / used["used"], places=6)
        self.assertGreater(after["attention_ms_per_token"], 0)
        drift = after["drift"]
        self.assertGreater(drift["checks"], 0)
        self.assertTrue(0 < drift["last"] <= drift["largest"] < 0.35 and drift["warnings"] == 0, drift)
        values = metrics(self.get("/metrics")[1])
        self.assertEqual(one(values, "tersekv_bytes", 'kind="pages"'), used["pages"])
        self.assertEqual(one(values, "tersekv_tokens", 'stored="packed"'), after["tokens_packed"])
        self.assertEqual(one(values, "tersekv_slot_tokens", 'slot="0"'), slot["tokens"])
        self.assertAlmostEqual(one(values, "vllm:kv_cache_usage_perc"), used["used"] / used["budget"], places=4)
        self.assertEqual(one(values, "vllm:prompt_tokens_total"), after["prompt"]["tokens"])
        self.assertEqual(one(values, "tersekv_contexts_total", "packed"), 1)
        self.assertTrue(all('model_name="' in labels for (name, labels) in values if name in COUNTERS))

    def test_the_page_of_docs_names_every_metric(self):
        table = (preload.ROOT / "docs/serving.md").read_text().split("\n| metric |")[1].split("\n\n")[0]
        named = dict(re.findall(r"`((?:vllm:|tersekv_)[a-z0-9_]+)(?:\{([a-z_]+)\})?`", table))
        given = {}
        for name, labels in metrics(self.get("/metrics")[1]):
            own = set(re.findall(r'([a-z_]+)="', labels or "")) - {"model_name", "engine"}
            given.setdefault(name, set()).update(own)
        self.server.complete("one slot", 2)
        self.assertEqual(set(named), set(given) | {"tersekv_slot_bytes", "tersekv_slot_tokens"})
        for name, label in named.items():
            if name in given:
                self.assertEqual(given[name], {label} - {""}, name)

    def test_slots_that_share_say_so(self):
        prompt = preload.TEXT[:1500]
        self.server.post("/completion", {"prompt": [prompt, prompt], "n_predict": 1, "temperature": 0})
        both = self.server.post("/v1/completions", {"prompt": prompt, "n": 2, "max_tokens": 2, "temperature": 0})
        self.assertNotIn("error", both)
        status = self.status()
        if any(s["shared_bytes"] for s in status["slots"]):
            self.assertGreater(status["pages"]["shared"], 0)
        else:
            self.assertEqual(status["pages"]["shared"], 0)
        self.assertGreaterEqual(sum(s["bytes"] for s in status["slots"]),
                                status["bytes"]["pages"] * 0.9)

    def test_it_answers_while_the_server_works(self):
        with concurrent.futures.ThreadPoolExecutor(5) as pool:
            work = [pool.submit(self.server.complete, preload.TEXT[i * 300:i * 300 + 1200], 40) for i in range(4)]
            asked, last = 0, {}
            while not all(w.done() for w in work):
                values = metrics(self.get("/metrics")[1])
                for key, value in values.items():
                    if key[0] in COUNTERS:
                        self.assertGreaterEqual(value, last.get(key, 0), key)
                        last[key] = value
                asked += 1
            self.assertTrue(all("tokens" in w.result() for w in work))
        self.assertGreater(asked, 3)

    def test_other_requests(self):
        for path, code in (("/none", 404), ("/status.json/", 404)):
            with self.assertRaises(urllib.error.HTTPError) as caught:
                self.get(path)
            self.assertEqual(caught.exception.code, code)
        with self.assertRaises(urllib.error.HTTPError) as caught:
            self.get("/metrics", "DELETE")
        self.assertEqual((caught.exception.code, caught.exception.headers["Allow"]), (405, "GET, HEAD"))
        self.assertEqual(self.get("/metrics?x=1", "HEAD")[1], "")
        for junk in (b"\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\xff" * 20000, b"GET /" + b"a" * 20000, b""):
            with socket.create_connection(("127.0.0.1", self.port), 5) as s:
                s.sendall(junk)
        self.assertIn("tersekv_bytes", self.get("/metrics")[1])

    def test_curl(self):
        if not shutil.which("curl"):
            self.skipTest("curl is not here")
        said = subprocess.run(["curl", "-sS", "-i", f"http://127.0.0.1:{self.port}/metrics"], capture_output=True, text=True,
                              check=True).stdout
        self.assertRegex(said, r"^HTTP/1\.1 200 OK\r?\n")
        self.assertIn("text/plain; version=0.0.4", said)

    def test_the_page_in_a_browser(self):
        page = self.get("/")[1]
        self.assertNotRegex(page, r"(?:src|href|@import|url\()\s*=?\s*[\"']?\s*(?:https?:)?//")  # self-contained
        if CHROMIUM is None:
            self.skipTest("no Chromium is here (Debian: chromium)")
        self.server.complete(preload.TEXT[:1200], 30, id_slot=1)
        status = self.status()
        with tempfile.TemporaryDirectory() as profile:
            done = subprocess.run(
                [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={profile}",
                 "--virtual-time-budget=8000", "--dump-dom", f"http://127.0.0.1:{self.port}/"],
                capture_output=True, text=True, timeout=120)
        dom = done.stdout
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        self.assertIn(status["spec"], dom, dom[-3000:] + done.stderr[-1000:])
        self.assertIn(f"{status['ratio']:.2f} times as much", dom)
        rows = re.findall(r"<tr><td>(\d+)</td><td>(\d+)</td>", dom)
        self.assertEqual({(int(a), int(b)) for a, b in rows}, {(s["id"], s["tokens"]) for s in status["slots"]})
        layers = len(status["slots"][0]["layers"])
        self.assertEqual(dom.count("title=\"layer "), layers * len(status["slots"]))
        self.assertIn("<polyline", dom)
        self.assertIn('<span id="lost"></span>', dom)


class Settings(unittest.TestCase):
    def bench(self, **variables):
        return preload.run([BENCH, "-m", MODEL, "-p", 16, "-n", 2, "-t", 1, "-r", 1],
                           preload.environment(SO, "k4v4", **variables))

    def test_off_unless_asked_for(self):
        code, said = self.bench()
        self.assertEqual(code, 0, said)
        self.assertNotIn("status at", said)

    def test_a_free_port(self):
        self.assertRegex(self.bench(STATUS_PORT=0)[1], r"status at \S+//127\.0\.0\.1:\d{2,5}/")

    def test_a_port_that_is_taken(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            code, said = self.bench(STATUS_PORT=port)
            self.assertEqual(code, 0, said)
            self.assertIn(f"no status port: port {port} of 127.0.0.1", said)
            self.assertNotEqual(self.bench(STATUS_PORT=port, STRICT=1)[0], 0)

    def test_wrong_values(self):
        for variables, word in (({"STATUS_PORT": "http"}, "TERSEKV_STATUS_PORT=http"),
                                ({"STATUS_PORT": "70000"}, "TERSEKV_STATUS_PORT=70000"),
                                ({"STATUS_PORT": "0", "STATUS_HOST": "nowhere"}, "TERSEKV_STATUS_HOST=nowhere")):
            code, said = self.bench(**variables)
            self.assertNotEqual(code, 0)
            self.assertIn(word, said)

    def test_the_process_ends_while_it_is_asked(self):
        for _ in range(5):
            port = preload.free_port()
            process = subprocess.Popen([BENCH, "-m", str(MODEL), "-p", "64", "-n", "16", "-t", "1", "-r", "2"],
                                       env=preload.environment(SO, "k4v4", STATUS_PORT=port), stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE, text=True)
            answers = 0
            while process.poll() is None:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/status.json", timeout=5) as answer:
                        answers += answer.status == 200
                except (urllib.error.URLError, ConnectionError, TimeoutError):
                    time.sleep(0.002)
            self.assertEqual(process.returncode, 0, process.stderr.read()[-2000:])
            process.stderr.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
