# SPDX-License-Identifier: Apache-2.0
"""What the tests of libtersekv_preload.so share: where things are, running programs stock and packed, a server."""
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).parents[2]
SKIPPED = 77
CACHE = pathlib.Path(os.environ.get("TERSEKV_CACHE_DIR") or
                     pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "tersekv")
MODEL = os.environ.get("TERSEKV_TEST_MODEL") or str(CACHE / "models/SmolLM2-135M-Instruct.Q4_1.gguf")
RANDOM_MODEL = CACHE / "models/test/preload-llama.gguf"
F32_MODEL = CACHE / "models/test/SmolLM2-135M-Instruct.f32.gguf"
STOCK = ["-fa", "off", "-ctk", "f32", "-ctv", "f32"]  # what the mechanism is exact against
TEXT = re.sub(r"\s+", " ", (ROOT / "LICENSE").read_text())


def need(*paths):
    """Ends the test as skipped when something is not there."""
    for path in paths:
        if not os.path.exists(path):
            print(f"skipped: {path} is not here (scripts/setup.sh makes llama.cpp and the model)")
            raise SystemExit(SKIPPED)


def random_model(path=RANDOM_MODEL, shape=("--heads", 8, "--kv-heads", 2, "--embd", 256)):
    """A small one with random f32 weights and a tokenizer of bytes, made once."""
    if not path.exists():
        version = re.search(r"^GGUF_VERSION=(\S+)", (ROOT / "scripts/versions.sh").read_text(), re.M)[1]
        python = os.environ.get("TERSEKV_TEST_PYTHON") or CACHE / f"venv-gguf-{version}/bin/python"
        need(python)
        path.parent.mkdir(parents=True, exist_ok=True)
        made = f"{path}.{os.getpid()}"
        subprocess.run([python, ROOT / "tests/tools/make_model.py", "random", *map(str, shape), "--out", made], check=True,
                       stdout=subprocess.DEVNULL)
        os.replace(made, path)
        os.remove(made + ".json")
    return path


def windowed_model():
    return random_model(CACHE / "models/test/preload-gemma2.gguf", ("--arch", "gemma2", "--heads", 4, "--kv-heads", 2,
                                                                    "--embd", 256, "--window", 256))


def environment(preload=None, kv=None, **variables):
    env = {k: v for k, v in os.environ.items() if not k.startswith("TERSEKV_") and k != "LD_PRELOAD"}
    if preload:
        env["LD_PRELOAD"] = str(preload)
    if kv:
        env["TERSEKV_KV"] = kv
    env.update({f"TERSEKV_{k}": str(v) for k, v in variables.items()})
    return env


def run(arguments, env, timeout=300):
    """(exit code, stdout and then stderr: mixed as they come, lines of one cut those of the other)."""
    done = subprocess.run([str(a) for a in arguments], env=env, capture_output=True, text=True, errors="replace",
                          timeout=timeout)
    return done.returncode, done.stdout + done.stderr


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """llama-server on a port of its own; `with Server(...) as s`."""

    def __init__(self, program, model, arguments, env):
        self.port = free_port()
        self.folder = tempfile.mkdtemp(prefix="tersekv-server-")
        self.log = open(f"{self.folder}/log", "w+")
        command = [program, "-m", model, "--host", "127.0.0.1", "--port", self.port, "-t", 2, "--slots", "--metrics",
                   "--slot-save-path", self.folder + "/", *arguments]
        self.process = subprocess.Popen([str(c) for c in command], env=env, stdout=self.log, stderr=subprocess.STDOUT)

    def __enter__(self):
        for _ in range(1200):
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with code {self.process.returncode}:\n{self.said()[-3000:]}")
            try:
                if self.get("/health").get("status") == "ok":
                    return self
            except (urllib.error.URLError, ConnectionError):
                pass
            time.sleep(0.1)
        raise RuntimeError("the server did not come up:\n" + self.said()[-3000:])

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def said(self):
        self.log.flush()
        return pathlib.Path(self.log.name).read_text(errors="replace")

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=120) as r:
            return json.loads(r.read())

    def post(self, path, body, raw=False):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=240) as r:
                text = r.read().decode()
        except urllib.error.HTTPError as error:
            return {"http": error.code, **json.loads(error.read().decode())}
        return text if raw else json.loads(text)

    def complete(self, prompt, n=24, **more):
        """Greedy tokens of a completion, and how much of the prompt was there already."""
        body = {"prompt": prompt, "n_predict": n, "temperature": 0, "ignore_eos": True, "cache_prompt": True,
                "return_tokens": True, **more}
        r = self.post("/completion", body)
        if "error" in r:
            return {"error": r["error"]}
        return {"tokens": r["tokens"], "cache_n": r["timings"]["cache_n"]}
