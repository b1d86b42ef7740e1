#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packed caches of Python on a GPU side by side: decode time, allocated bytes and KL, one model, one run.

A Llama of the 8B shape with random weights in bf16, scaled so that attention moves the logits (embeddings x 50, o_proj
x 4, down_proj / 10). One prompt of random tokens is run through it once; every cache is filled with those keys and values,
then decodes the same tokens. KL is against DynamicCache (bf16, sdpa) on the same tokens; StaticCache shows how much of it is
rounding. The time is of a whole forward pass, the median of the steps, beside DynamicCache's median of the steps right
before and after. Bytes are what torch.cuda.memory_allocated() grew by. The environment is that of peers.py, with CUDA;
a cache that refuses or fails is named with its own message.

    bench/python/peers_cuda.py [--cases 8x8192,1x8192] [--only 'tersekv k4v4;tersekv k8v8'] [--json rows.json]
"""
import argparse
import datetime
import gc
import json
import statistics
import time

import torch
from decode_cuda import model_of
from peer_caches import Contestant, contestants, held_bytes, quiet_libraries, versions
from transformers import DynamicCache, StaticCache

from tersekv import DecodeGraph, TerseCache, _core

SELECTION = ("tersekv k4v4;tersekv k8v8;tiny-turboquant safe;tiny-turboquant safe, patch_model;QuantizedCache quanto 4;"
             "QuantizedCache hqq 4;turboquant-gpu 3 generate();turboquant-gpu 3 codec;turbo-attn 4 codec")
WARM, STEPS, BESIDE = 3, 12, 4


class Device:
    """Memory and clock; the CPU, to try the program, has no counter."""

    def __init__(self, name):
        self.name, self.cuda = name, name == "cuda"

    def wait(self):
        if self.cuda:
            torch.cuda.synchronize()

    def allocated(self):
        gc.collect()
        self.wait()
        return torch.cuda.memory_allocated() if self.cuda else 0

    def peak(self):
        return torch.cuda.max_memory_allocated() if self.cuda else 0

    def mark(self):
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()

    def empty(self):
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()


@torch.no_grad()
def scaled(model):
    model.model.embed_tokens.weight.mul_(50)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.mul_(4)
        layer.mlp.down_proj.weight.mul_(0.1)
    return model


@torch.no_grad()
def prompt_of(model, batch, length, device):
    """[(keys, values)] by layer, of random tokens."""
    ids = torch.randint(0, model.config.vocab_size, (batch, length), generator=torch.Generator().manual_seed(3))
    cache = DynamicCache(config=model.config)
    model.set_attn_implementation("sdpa")
    for low in range(0, length, 1024):
        model(ids[:, low:low + 1024].to(device.name), past_key_values=cache, logits_to_keep=1)
    return [(layer.keys, layer.values) for layer in cache.layers]


def fill(cache, prompt, batch, history):
    for index, (keys, values) in enumerate(prompt):
        cache.update(keys[:batch, :, :history].contiguous(), values[:batch, :, :history].contiguous(), index)
    getattr(cache, "end_prompt", lambda: None)()
    if isinstance(cache, TerseCache):
        cache.stats()  # stores what no attention has asked for
    return cache


class Decoder:
    """Decodes forced tokens [batch, steps] on a filled cache."""

    def __init__(self, model, contestant, cache, tokens, history, device, graph=False):
        self.model, self.contestant, self.cache, self.tokens = model, contestant, cache, tokens
        self.at, self.start, self.device, self.graph = 0, history, device, None
        if graph:
            model.set_attn_implementation("tersekv")
            self.graph = DecodeGraph(model, cache, max_new_tokens=tokens.shape[1] + 1)

    def step(self):
        """(logits [batch, vocabulary], seconds)"""
        ids = self.tokens[:, self.at:self.at + 1]
        self.device.wait()
        start = time.perf_counter()
        if self.graph is not None:
            logits = self.graph.step(ids)
        else:
            at = torch.full((1, 1), self.start + self.at, dtype=torch.int64, device=self.device.name)
            logits = self.model(input_ids=ids, position_ids=at, past_key_values=self.cache, use_cache=True).logits[:, -1]
        self.device.wait()
        self.at += 1
        return logits, time.perf_counter() - start

    def run(self, most, seconds=6):
        """-> logits and seconds of the steps; at least three after the warm ones."""
        self.model.set_attn_implementation(self.contestant.attention)
        if self.contestant.patch is not None:
            self.contestant.patch(self.model)
        logits, times, begin = [], [], time.perf_counter()
        try:
            while len(times) < most and (len(times) < WARM + 3 or time.perf_counter() - begin < seconds):
                out, took = self.step()
                logits.append(out.float().log_softmax(-1))
                times.append(took)
        finally:
            if self.contestant.unpatch is not None:
                self.contestant.unpatch(self.model)
        return logits, times

    def close(self):
        if self.graph is not None:
            self.graph.close()


class Stock:
    """DynamicCache, kept filled; timed before and after each of the others."""

    def __init__(self, model, prompt, batch, history, tokens, device):
        self.cache = fill(DynamicCache(config=model.config), prompt, batch, history)
        self.runner = Decoder(model, Contestant("DynamicCache", "sdpa", None), self.cache, tokens, history, device)
        self.logits, self.times = self.runner.run(WARM + STEPS)
        self.rewind()

    def rewind(self):
        self.cache.crop(-self.runner.at)
        self.runner.at = 0

    def beside(self):
        _, times = self.runner.run(1 + BESIDE)
        self.rewind()
        return times[1:]


def kl(want, got):
    return (want.exp() * (want - got)).sum(-1)


def measure(model, contestant, prompt, batch, history, tokens, stock, device, graph):
    device.empty()
    before = device.allocated()
    device.mark()
    cache = fill(contestant.make(), prompt, batch, history)
    row = {"cache": contestant.name, "batch": batch, "history": history, "allocated_bytes": device.allocated() - before,
           "fill_peak_bytes": device.peak() - before, "held_bytes": held_bytes(cache)}
    if isinstance(cache, TerseCache):
        row["spec"] = cache.stats().get("device_spec")
    first = stock.beside()
    runner = Decoder(model, contestant, cache, tokens, history, device, graph)
    now = device.allocated()
    device.mark()
    logits, times = runner.run(WARM + STEPS)
    row["step_peak_bytes"] = device.peak() - now
    after = stock.beside()
    distance = torch.stack([kl(want, got) for want, got in zip(stock.logits, logits)])
    row.update(ms=1e3 * statistics.median(times[WARM:]), ms_min=1e3 * min(times[WARM:]), steps=len(times) - WARM,
               dynamic_ms=1e3 * statistics.median(first + after), kl_mean=float(distance.mean()),
               kl_max=float(distance.max()),
               top1=float(torch.stack([(want.argmax(-1) == got.argmax(-1)).float().mean()
                                       for want, got in zip(stock.logits, logits)]).mean()))
    row["speedup"] = row["dynamic_ms"] / row["ms"]
    runner.close()
    return row


def all_of(model, known, length):
    """With how each decodes; ours first, quanto (which compiles its kernels at first use) last."""
    yield Contestant("StaticCache", "sdpa", lambda: StaticCache(config=model.config, max_cache_len=length)), False
    for contestant in sorted(known, key=lambda c: ("tersekv" not in c.name, "quanto" in c.name)):
        yield contestant, False
        if contestant.attention == "tersekv":
            yield Contestant(contestant.name + ", DecodeGraph", "tersekv", contestant.make), True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="8x8192,1x8192,8x1024,1x1024,8x4096,1x4096", help="batch x history, in order")
    parser.add_argument("--only", default=SELECTION, help="names, separated by semicolons; and StaticCache")
    parser.add_argument("--seconds", type=float, default=300, help="no cache begins after them")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the program")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--json")
    options = parser.parse_args()
    quiet_libraries()
    begin, device, rows, refused = time.perf_counter(), Device(options.device), [], {}
    model = scaled(model_of(options.tiny, device.name))
    cases = [tuple(int(x) for x in text.split("x")) for text in options.cases.split(",")]
    with torch.no_grad():
        prompt = prompt_of(model, max(b for b, _ in cases), max(h for _, h in cases), device)
    print(f"model and prompt at {time.perf_counter() - begin:.0f} s", flush=True)
    wanted = options.only.split(";")
    known = [c for c in contestants(model, refused) if c.name in wanted]
    for batch, history in cases:
        tokens = torch.randint(0, model.config.vocab_size, (batch, WARM + STEPS + 1),
                               generator=torch.Generator().manual_seed(4)).to(device.name)
        with torch.no_grad():
            stock = Stock(model, prompt, batch, history, tokens, device)
        for contestant, graph in all_of(model, known, history + WARM + STEPS + 1):
            name = f"{contestant.name} at {batch} x {history}"
            if time.perf_counter() - begin > options.seconds:
                refused[name] = "left out for lack of time"
                continue
            try:
                with torch.no_grad():
                    row = measure(model, contestant, prompt, batch, history, tokens, stock, device, graph)
            except Exception as error:
                refused[name] = f"{type(error).__name__}: {str(error)[:300]}"
                print(f"refused: {name}: {refused[name]}", flush=True)
                model.set_attn_implementation("sdpa")
                continue
            rows.append(row)
            print(f"{batch} x {history:5} {row['cache']:36} {row['ms']:9.2f} ms  {row['speedup']:5.2f} x of "
                  f"{row['dynamic_ms']:7.2f}  {row['allocated_bytes'] / 1e6:9.1f} MB  peak {row['step_peak_bytes'] / 1e6:8.1f}"
                  f"  KL {row['kl_mean']:.2e}  top-1 {row['top1']:.1%}  at {time.perf_counter() - begin:.0f} s", flush=True)
            if options.json:
                envelope = {"setting": {"model": "Llama 8B shape, random weights, bf16", "versions": versions(),
                                        "machine": torch.cuda.get_device_name() if device.cuda else "cpu"},
                            "rows": rows, "refused": refused, "commit": _core.commit(),
                            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
                with open(options.json, "w") as file:
                    json.dump(envelope, file, indent=1)
        del stock
        device.empty()
    for name, reason in refused.items():
        print(f"refused: {name}: {reason}")


if __name__ == "__main__":
    main()
