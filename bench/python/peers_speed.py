#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decode time of packed caches of Python side by side: one model, one run, the caches taking turns token by token.

Every cache is filled with the same random keys and values of the model's own dtype (no time here depends on what they
are), then each decodes one token, in an order that is drawn anew each round, until the seconds of that depth are over.
The time is of a whole forward pass at batch 1: the median of a cache's tokens, and its ratio to DynamicCache's median of
the same rounds. `attention` is what is left of it when the same pass over an empty DynamicCache is taken off. The
environment is that of peers.py.

    bench/python/peers_speed.py MODEL.gguf [--depths 1024,4096,8192] [--seconds 60] [--only k4v4,tiny] [--json rows.json]
"""
import argparse
import datetime
import json
import pathlib
import random
import statistics
import sys
import time

import torch
from peer_caches import Contestant, contestants, held_bytes, quiet_libraries, versions
from peers import machine
from transformers import DynamicCache

from tersekv import _core
from tersekv.cli import load

SELECTION = ("tersekv k8v8,tersekv k4v4,tersekv kivi-k4v4,tersekv k2v2,tiny-turboquant safe,QuantizedCache quanto 4,"
             "QuantizedCache hqq 4,QuantizedCache fp8,turboquant-gpu 3 generate(),turboquant-gpu 3 codec,turbo-attn 4 codec")


def fill(cache, model, depth):
    config, generator = model.config, torch.Generator().manual_seed(1)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    for layer in range(config.num_hidden_layers):
        keys, values = (torch.randn(1, config.num_key_value_heads, depth, head_dim, generator=generator).to(model.dtype)
                        for _ in range(2))
        cache.update(keys, values, layer)
    getattr(cache, "end_prompt", lambda: None)()
    held_bytes(cache)  # ours stores what no attention has asked for
    return cache


def step(model, contestant, cache):
    """Seconds of one token."""
    model.set_attn_implementation(contestant.attention)
    if contestant.patch is not None:
        contestant.patch(model)
    try:
        token = torch.full((1, 1), 42)
        start = time.perf_counter()
        model(token, past_key_values=cache)
        return time.perf_counter() - start
    finally:
        if contestant.unpatch is not None:
            contestant.unpatch(model)


def measure(model, chosen, depth, seconds, refused):
    """-> rows. A cache whose token takes longer than a sixtieth of the seconds sits out three rounds of four."""
    empty = Contestant("empty", "sdpa", lambda: DynamicCache(config=model.config))
    caches, times = {}, {}
    for contestant in chosen:
        try:
            model.set_attn_implementation(contestant.attention)
            caches[contestant.name] = fill(contestant.make(), model, depth)
            step(model, contestant, caches[contestant.name])
            times[contestant.name] = []
        except Exception as error:
            refused[f"{contestant.name} at {depth}"] = f"{type(error).__name__}: {str(error)[:300]}"
    running = [contestant for contestant in chosen if contestant.name in times]
    end, rounds, order = time.monotonic() + seconds, 0, random.Random(1)
    times["empty"] = []
    while rounds < 3 or time.monotonic() < end:
        for contestant in order.sample([empty, *running], len(running) + 1):  # what ran before may cost the next one
            taken = times[contestant.name]
            if rounds >= 3 and rounds % 4 != 0 and taken[-1] > seconds / 60:
                continue
            cache = empty.make() if contestant is empty else caches[contestant.name]
            taken.append(step(model, contestant, cache))
        rounds += 1
    base = times.pop("empty")
    floor = statistics.median(base)
    stock = statistics.median(times["DynamicCache"])
    rows = []
    for contestant in running:
        median = statistics.median(times[contestant.name])
        rows.append({"cache": contestant.name, "depth": depth, "ms_per_token": 1e3 * median,
                     "least_ms": 1e3 * min(times[contestant.name]), "tokens": len(times[contestant.name]),
                     "attention_ms": 1e3 * (median - floor), "times_dynamic": median / stock,
                     "bytes": held_bytes(caches[contestant.name])})
        print(f"{depth:6} {contestant.name:36} {1e3 * median:9.1f} ms  {median / stock:6.2f} x DynamicCache  "
              f"attention {1e3 * (median - floor):9.1f} ms  of {len(times[contestant.name])} tokens", flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--depths", default="1024,4096,8192")
    parser.add_argument("--seconds", type=float, default=60, help="of steps, for each depth")
    parser.add_argument("--only", default=SELECTION, help="names, or texts that names contain; and DynamicCache")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--json")
    arguments = parser.parse_args()
    quiet_libraries()
    model, _ = load(arguments.model, arguments.dtype)
    refused = {}
    known, wanted = list(contestants(model, refused)), arguments.only.split(",")
    names = [contestant.name for contestant in known]
    chosen = [contestant for contestant in known if contestant.name in ("DynamicCache", *wanted) or
              any(part in contestant.name for part in wanted if part not in names)]
    rows = []
    with torch.no_grad():
        for depth in arguments.depths.split(","):
            rows += measure(model, chosen, int(depth), arguments.seconds, refused)
    for name, reason in refused.items():
        print(f"refused: {name}: {reason}", file=sys.stderr)
    if arguments.json:
        setting = {"model": pathlib.Path(arguments.model).name, "dtype": arguments.dtype, "batch": 1,
                   "versions": versions(), "machine": machine()}
        envelope = {"setting": setting, "rows": rows, "refused": refused, "commit": _core.commit(),
                    "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
        pathlib.Path(arguments.json).write_text(json.dumps(envelope, indent=1) + "\n")


if __name__ == "__main__":
    main()
