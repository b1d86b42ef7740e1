# SPDX-License-Identifier: Apache-2.0
"""tersekv-py: eval, validate, serve (through an openai client), doctor."""
import json
import math
import socket
import threading
import time

import pytest
import torch

from models import forward, make, packed, tokens
from tersekv import cli
from tersekv.evaluate import evaluate, validate

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


def words(n, seed=1):
    return " ".join(f"w{i}" for i in tokens(1, n, seed)[0].tolist())


def test_evaluate_is_what_plain_torch_says():
    model, ids = make("llama"), tokens(1, 700)[0]
    rows = evaluate(model, ids, ["f32", "k8v8", "k4v4", "k2v2"], context=256, windows=3, quiet=True)
    f32, k8, k4, k2 = rows
    assert f32["kl_mean"] < 1e-8 and f32["top1"] == 1.0 and abs(f32["dppl"]) < 1e-6
    assert k8["kl_mean"] < k4["kl_mean"] < k2["kl_mean"] and k8["top1"] > 0.98
    assert f32["tokens"] == 128 * 3 and k4["ratio"] > f32["ratio"] and k4["prefill"] == "decode"
    nll = 0.0
    for window in range(3):  # the reference perplexity by hand
        part = ids[window * 128:window * 128 + 257]
        logits = forward(model, "eager", None, part[None, :-1], use_cache=False)[0].log_softmax(-1)
        nll -= float(logits[128:].gather(1, part[129:, None]).sum())
    assert f32["ppl_reference"] == pytest.approx(math.exp(nll / 384), rel=1e-4)
    with pytest.raises(ValueError, match="at least 513"):
        evaluate(model, ids[:300], ["k4v4"], context=512)
    with pytest.raises(ValueError, match="stride 300"):
        evaluate(model, ids, ["k4v4"], context=512, stride=300)


def test_validate():
    model = make("llama")
    exact = validate(model, [tokens(1, 20), tokens(1, 9, 3)], "f32", new_tokens=15, quiet=True)
    assert exact["agreement"] == 1.0 and exact["identical"] == 2 and exact["tokens"] == 30
    assert exact["rows"][0]["first_divergence"] is None
    coarse = validate(model, [tokens(1, 300)], "k2v2+sink=0+win=0", new_tokens=30, quiet=True)
    assert coarse["agreement"] < 1.0 and coarse["rows"][0]["first_divergence"] is not None


def test_commands_write_rows(folder, tmp_path, capsys):
    text, prompts, rows = tmp_path / "text", tmp_path / "prompts", tmp_path / "rows.json"
    text.write_text(words(400))
    prompts.write_text(f"{words(12)}\n\n{words(20, 5)}\n")
    assert cli.main(["eval", "-m", str(folder), "--file", str(text), "--kv", "k4v4,f16", "--context", "128", "--quiet",
                     "--json", str(rows)]) == 0
    written = json.loads(rows.read_text())
    assert [row["spec"] for row in written["rows"]] == ["k4v4", "f16"] and written["tersekv_version"]
    assert "perplexity" in capsys.readouterr().out
    validation = ["validate", "-m", str(folder), "--prompts", str(prompts), "--tokens", "8", "--quiet", "--json", "-"]
    assert cli.main([*validation, "--kv", "f32", "--least", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["identical"] == 2
    assert cli.main([*validation, "--kv", "k2v2", "--least", "1.1"]) == 1
    assert cli.main(["doctor"]) == 0
    assert "verdict: ready" in capsys.readouterr().out


@pytest.mark.parametrize("arguments, message", [
    (["eval", "-m", "x", "--file", "x", "--kv", "k44"], "k44"),
    (["eval", "-m", "missing.gguf", "--file", __file__], "missing.gguf"),
    (["validate", "-m", "x", "--prompts", "/nonexistent"], "/nonexistent"),
])
def test_wrong_arguments_are_named(arguments, message, capsys):
    assert cli.main(arguments) == 1
    assert message in capsys.readouterr().err


@pytest.fixture(scope="module")
def server(folder):
    pytest.importorskip("fastapi")
    uvicorn = pytest.importorskip("uvicorn")
    from tersekv.serve import create_app
    model, tokenizer = cli.load(str(folder), "float32")
    model.generation_config.eos_token_id = None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    running = uvicorn.Server(uvicorn.Config(create_app(model, tokenizer, "f32", "tiny"), host="127.0.0.1", port=port,
                                            log_level="error"))
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.05)
    yield port, model, tokenizer
    running.should_exit = True
    thread.join(10)


def answer_of(model, tokenizer, content, n):
    """What the server should say, by a plain run."""
    ids = tokenizer(f"user: {content}\nassistant:", return_tensors="pt").input_ids
    out = model.generate(ids, attention_mask=torch.ones_like(ids), past_key_values=packed(model), do_sample=False,
                         max_new_tokens=n)
    return tokenizer.decode(out[0, ids.shape[1]:], skip_special_tokens=True)


def test_an_openai_client_streams(server):
    openai = pytest.importorskip("openai")
    port, model, tokenizer = server
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
    assert [m.id for m in client.models.list()] == ["tiny"]
    messages = [{"role": "user", "content": words(15)}]
    options = dict(model="tiny", messages=messages, temperature=0, max_tokens=12)
    want = answer_of(model, tokenizer, messages[0]["content"], 12)
    whole = client.chat.completions.create(**options)
    assert whole.choices[0].message.content.strip() == want.strip()
    assert whole.choices[0].finish_reason == "length" and whole.usage.completion_tokens == 12
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content and len(chunks) > 4
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    stop = want.split()[5]
    cut = client.chat.completions.create(**options, stop=[stop])
    assert stop not in cut.choices[0].message.content and cut.choices[0].finish_reason == "stop"
    seeded = [client.chat.completions.create(**{**options, "temperature": 1.0}, seed=4).choices[0].message.content
              for _ in range(2)]
    assert seeded[0] == seeded[1]
    for wrong, message in ((dict(temperature=3), "temperature"), (dict(model="other"), "other"),
                           (dict(messages=[]), "messages"), (dict(n=2), "n must be 1")):
        with pytest.raises(openai.BadRequestError, match=message):
            client.chat.completions.create(**{**options, **wrong})


def test_requests_take_turns_and_health_answers(server):
    import httpx
    port, model, tokenizer = server
    url = f"http://127.0.0.1:{port}"
    answers = {}

    def ask(i):
        body = {"messages": [{"role": "user", "content": words(10, i)}], "temperature": 0, "max_tokens": 10}
        answers[i] = httpx.post(url + "/v1/chat/completions", json=body, timeout=60).json()

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    assert httpx.get(url + "/health", timeout=60).json()["status"] == "ok"
    for thread in threads:
        thread.join()
    for i in range(4):
        assert answers[i]["choices"][0]["message"]["content"].strip() == \
            answer_of(model, tokenizer, words(10, i), 10).strip()
    assert httpx.get(url + "/health", timeout=60).json()["waiting"] == 0
