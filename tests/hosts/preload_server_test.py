#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""llama-server, stock against libtersekv_preload.so: preload_server_test.py PRELOAD LLAMA_BIN [CASE...].

With f32 every greedy token and every count of reused prompt tokens must be those of a stock server with an f32 cache
and no flash attention; with k4v4 the same requests must work.
"""
import concurrent.futures
import json
import sys

import preload
from preload import TEXT


def parallel(server, prompts, n, **more):
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(lambda p: server.complete(p, n, **more), prompts))


CHAT = {"messages": [{"role": "user", "content": "What does the licence say about source code?"}], "max_tokens": 24,
        "temperature": 0}


def chat(server):
    out = {"chat": server.post("/v1/chat/completions", CHAT)["choices"][0]["message"]["content"]}
    streamed = ""
    for line in server.post("/v1/chat/completions", {**CHAT, "stream": True}, raw=True).splitlines():
        if line.startswith("data: {"):
            choices = json.loads(line[6:])["choices"]
            streamed += (choices[0]["delta"].get("content") or "") if choices else ""
    out["stream"] = streamed
    both = server.post("/v1/chat/completions", {**CHAT, "n": 2})["choices"]
    out["n=2"] = [c["message"]["content"] for c in both]
    return out


def slots(server):
    return {"parallel": parallel(server, [TEXT[i * 900:i * 900 + 400 + i * 150] for i in range(4)], 24)}


def reuse(server):
    out = {"first": server.complete(TEXT[:1500], 12, id_slot=0),
           "prefix": server.complete(TEXT[:1200] + " A different end.", 12, id_slot=0)}
    saved = server.post("/slots/0?action=save", {"filename": "a.bin"})
    out["saved"] = saved.get("n_saved", saved.get("error"))
    out["erased"] = "n_erased" in server.post("/slots/0?action=erase", {})
    restored = server.post("/slots/1?action=restore", {"filename": "a.bin"})
    out["restored"] = restored.get("n_restored", restored.get("error"))
    out["after restore"] = server.complete(TEXT[:1200] + " A different end.", 12, id_slot=1)
    return out


def cache_ram(server):
    return {str(i): server.complete(p, 12) for i, p in enumerate(
        [TEXT[:1200], "Zebra " + TEXT[4000:5200], TEXT[:1200] + " again", "Zebra " + TEXT[4000:5200] + " once"])}


def shift(server):
    return {"beyond the context": server.complete(TEXT[:400], 300)}


def chunks(server):
    t = server.post("/tokenize", {"content": TEXT})["tokens"]
    return {"a": server.complete([1] + t[:100] + t[300:600], 8), "b": server.complete([1] + t[:100] + t[400:600], 8)}


def drafts(server):
    return {str(i): server.complete(TEXT[i * 500:i * 500 + 600], 40) for i in range(3)}


def windows(server):
    """Prompts past the window: going on, going back a little, far back, and from a saved slot."""
    out = {"first": server.complete(TEXT[:1500], 12, id_slot=0)}
    out["goes on"] = server.complete(TEXT[:1500] + " And then", 12, id_slot=0)
    out["a little back"] = server.complete(TEXT[:1480] + " Or else", 12, id_slot=0)
    out["far back"] = server.complete(TEXT[:700] + " A different end.", 12, id_slot=0)
    out["again"] = server.complete(TEXT[:1500], 12, id_slot=0)
    server.post("/slots/0?action=save", {"filename": "w.bin"})
    out["restored"] = server.post("/slots/1?action=restore", {"filename": "w.bin"}).get("n_restored")
    out["from the file"] = server.complete(TEXT[:1500] + " so", 12, id_slot=1)
    out["parallel"] = parallel(server, [TEXT[i * 300:i * 300 + 900] for i in range(2)], 12)

    def tokens(value):  # how much is reused depends on what is kept behind a window
        if isinstance(value, list):
            return [tokens(v) for v in value]
        return value.get("tokens", value) if isinstance(value, dict) else value

    return {name: tokens(value) for name, value in out.items()}


CASES = {  # requests, arguments of the server
    "chat": (chat, ["-c", 2048, "-np", 2, "-b", 256, "-ub", 128]),
    "slots": (slots, ["-c", 4096, "-np", 4, "-b", 256, "-ub", 128]),
    "shared slots": (slots, ["-c", 4096, "-np", 4, "-kvu", "-b", 256, "-ub", 128]),
    "reuse": (reuse, ["-c", 4096, "-np", 2, "-b", 256, "-ub", 128]),
    "cache_ram": (cache_ram, ["-c", 2048, "-np", 1, "--cache-ram", 300, "-b", 256, "-ub", 128]),
    "shift": (shift, ["-c", 512, "-np", 1, "--context-shift", "-b", 128, "-ub", 128]),
    "chunks": (chunks, ["-c", 1024, "-np", 1, "--cache-reuse", 16, "--cache-ram", 0, "-b", 256, "-ub", 128]),
    "draft": (drafts, ["-c", 2048, "-np", 1, "-b", 256, "-ub", 128, "--spec-type", "draft-simple", "--spec-draft-n-max", 6,
                       "-md", preload.RANDOM_MODEL]),
    "windows": (windows, ["-c", 4096, "-np", 2, "-b", 128, "-ub", 128]),
}
MODELS = {"windows": preload.windowed_model}


def differences(stock, ours, where=""):
    if isinstance(stock, dict) and isinstance(ours, dict):
        return [d for k in sorted({*stock, *ours}) for d in differences(stock.get(k), ours.get(k), f"{where}/{k}")]
    return [] if stock == ours else [f"{where}: stock {str(stock)[:300]} | packed {str(ours)[:300]}"]


def failures(result, where=""):
    if isinstance(result, dict):
        return [d for k, v in result.items() for d in ([f"{where}/{k}: {v}"] if k == "error" else failures(v, f"{where}/{k}"))]
    if isinstance(result, list):
        return [d for i, v in enumerate(result) for d in failures(v, f"{where}/{i}")]
    return [] if result or result == 0 else [f"{where}: empty"]


def main(so, llama_bin, names):
    server = f"{llama_bin}/llama-server"
    preload.need(so, server)
    preload.random_model()
    faults = []
    for name in names or CASES:
        requests, arguments = CASES[name]
        model = MODELS.get(name, preload.random_model)()
        with preload.Server(server, model, [*arguments, *preload.STOCK], preload.environment()) as s:
            stock = requests(s)
        faults += [f"{name}/stock{d}" for d in failures(stock)]  # else equality would say nothing
        for kv in ("f32", "k4v4"):
            with preload.Server(server, model, arguments, preload.environment(so, kv)) as s:
                ours, said = requests(s), s.said()
            if f"packed as {kv}" not in said:
                faults.append(f"{name}/{kv}: nothing was packed:\n{said[-2000:]}")
            found = differences(stock, ours) if kv == "f32" else failures(ours)
            faults += [f"{name}/{kv}{d}" for d in found]
            print(f"{name} {kv}: {len(found)} faults", flush=True)
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
