# SPDX-License-Identifier: Apache-2.0
"""`tersekv-py serve` as a process of its own: what clients see of it, from start to SIGTERM."""
import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("fastapi", reason="tersekv-py serve needs fastapi: pip install 'tersekv[serve]'")
pytest.importorskip("uvicorn", reason="tersekv-py serve needs uvicorn: pip install 'tersekv[serve]'")
httpx = pytest.importorskip("httpx", reason="this test asks with httpx: pip install -r tests/python/requirements.txt")

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "w5 w6 w7 w8"}]


@contextlib.contextmanager
def running(folder, *options):
    """-> (process, url) of a server that answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", "tersekv", "serve", "-m", str(folder), "--kv", "k4v4", "--name",
                                "tiny", "--port", str(port), *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True)
    url, end = f"http://127.0.0.1:{port}", time.monotonic() + 120
    try:
        while True:
            assert process.poll() is None, process.stdout.read()
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(url + "/health").status_code == 200:
                    break
            assert time.monotonic() < end, "no answer from /health within 120 s"
            time.sleep(0.1)
        yield process, url
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.fixture(scope="module")
def endless(folder, tmp_path_factory):
    """The tiny model without an end token, and with room for long answers."""
    path = tmp_path_factory.mktemp("endless")
    for file in folder.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    settings = json.loads((path / "generation_config.json").read_text())
    settings["eos_token_id"] = None
    (path / "generation_config.json").write_text(json.dumps(settings))
    return path


@pytest.fixture(scope="module")
def server(endless):
    with running(endless) as (process, url):
        yield url
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, process.stdout.read()
        assert "Traceback" not in process.stdout.read()


def test_an_openai_client_streams_from_the_process(server):
    openai = pytest.importorskip("openai", reason="the client of this test: pip install -r tests/python/requirements.txt")
    client = openai.OpenAI(base_url=server + "/v1", api_key="none", max_retries=0, timeout=60)
    options = dict(model="tiny", messages=MESSAGES, temperature=0, max_tokens=12)
    whole = client.chat.completions.create(**options)
    assert whole.choices[0].finish_reason == "length" and whole.usage.completion_tokens == 12
    chunks = list(client.chat.completions.create(**options, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert len(chunks) > 4 and chunks[-1].choices[0].finish_reason == "length"
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_health_and_models(server):
    health = httpx.get(server + "/health").json()
    assert health == {"status": "ok", "model": "tiny", "kv": "k4v4", "waiting": 0}
    models = httpx.get(server + "/v1/models").json()
    assert models["object"] == "list" and [model["id"] for model in models["data"]] == ["tiny"]


@pytest.mark.parametrize("change, message", [
    ({"model": "other"}, "model 'other' is not here: this server has 'tiny'"),
    ({"messages": []}, "messages must be a list"),
    ({"messages": "hello"}, "messages must be a list"),
    ({"messages": None}, "messages must be a list"),
    ({"messages": [{"role": "robot", "content": "w5"}]}, "each message needs a role"),
    ({"messages": [{"role": "user"}]}, "each message needs a role"),
    ({"max_tokens": 0}, "max_tokens is 0: from 1 to"),
    ({"max_tokens": -4}, "max_tokens is -4: from 1 to"),
    ({"max_tokens": 1.5}, "max_tokens is 1.5"),
    ({"max_completion_tokens": 0}, "max_completion_tokens is 0"),
    ({"temperature": -1}, "temperature is -1"),
    ({"stop": [""]}, "stop must be"),
    ({"stream_options": "usage"}, "stream_options must be an object"),
    ({"messages": [{"role": "user", "content": "w5 " * 5000}]}, "the model takes 4096"),
])
def test_wrong_requests_are_refused_with_a_reason(server, change, message):
    answer = httpx.post(server + CHAT, json={"model": "tiny", "messages": MESSAGES, "max_tokens": 4, **change}, timeout=60)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert message in error["message"] and error["type"] == "invalid_request_error"


@pytest.mark.parametrize("body", ["{", "", "not json", '{"messages": [}'])
def test_a_body_that_is_no_json_is_refused(server, body):
    answer = httpx.post(server + CHAT, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400 and "the body must be JSON" in answer.json()["error"]["message"]


def test_a_body_that_is_no_object_and_a_path_that_is_not_there(server):
    assert httpx.post(server + CHAT, json=[1]).status_code == 400
    assert httpx.post(server + "/v1/nothing", json={}).status_code == 404
    assert httpx.get(server + CHAT).status_code == 405


def test_after_refusals_it_still_answers(server):
    body = {"messages": MESSAGES, "temperature": 0, "max_tokens": 3}
    assert httpx.post(server + CHAT, json=body, timeout=60).json()["usage"]["completion_tokens"] == 3
    assert httpx.get(server + "/health").json()["waiting"] == 0


def test_sigterm_ends_a_long_answer_and_tells_its_client(endless):
    with running(endless) as (process, url):
        lines, first = [], threading.Event()

        def read():
            body = {"messages": MESSAGES, "temperature": 0, "max_tokens": 4000, "stream": True}
            with httpx.stream("POST", url + CHAT, json=body, timeout=60) as answer:
                for line in answer.iter_lines():
                    lines.append(line)
                    if re.search(r'"content": "\w', line):
                        first.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert first.wait(60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, process.stdout.read()
        reader.join(10)
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert "shutting down" in events[-1]["error"]["message"]
        assert len(events) < 3000 and "Traceback" not in process.stdout.read()


def test_a_port_that_is_taken_is_named(endless):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run([sys.executable, "-m", "tersekv", "serve", "-m", str(endless), "--port", str(port)],
                              capture_output=True, text=True, timeout=120)
    assert done.returncode != 0 and str(port) in done.stderr and "Traceback" not in done.stderr
