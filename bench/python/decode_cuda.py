# SPDX-License-Identifier: Apache-2.0
"""Decode on a GPU: TerseCache against DynamicCache and StaticCache with SDPA, alternately in one run.

A Llama of the 8B shape with random weights (or --tiny); histories of random keys and values are put into the caches, the
same in all. ms a token: the median of rounds of --steps greedy steps, with the smallest and largest.
"""
import argparse
import gc
import json
import statistics
import sys
import time

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache

from tersekv import DecodeGraph, TerseCache, __version__

WARM = 4


def model_of(tiny, device="cuda"):
    shape = dict(num_hidden_layers=2, hidden_size=512, intermediate_size=512, num_attention_heads=4,
                 num_key_value_heads=1, vocab_size=1000) if tiny else dict(
        num_hidden_layers=32, hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8,
        vocab_size=128256)
    config = LlamaConfig(**shape, head_dim=128, max_position_embeddings=131072, tie_word_embeddings=False,
                         rope_parameters=dict(rope_type="default", rope_theta=500000.0))
    config.dtype = torch.bfloat16
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    return model.to(torch.bfloat16)


def fill(model, cache, batch, history):
    """Random keys and values, the same for each cache."""
    config = model.config
    for layer in range(config.num_hidden_layers):
        g = torch.Generator("cuda").manual_seed(layer)
        k, v = (torch.randn(batch, config.num_key_value_heads, history, 128, device="cuda", generator=g,
                            dtype=torch.bfloat16) for _ in "kv")
        cache.update(k, v, layer)
        if isinstance(cache, TerseCache):
            cache.layers[layer].flush()


class Eager:
    def __init__(self, model, cache, attention, batch, history):
        self.model, self.cache, self.attention = model, cache, attention
        self.ids, self.at = torch.zeros(batch, 1, dtype=torch.int64, device="cuda"), history

    def steps(self, n):
        self.model.set_attn_implementation(self.attention)
        for _ in range(n):
            at = torch.full((1, 1), self.at, dtype=torch.int64, device="cuda")
            logits = self.model(input_ids=self.ids, position_ids=at, past_key_values=self.cache, use_cache=True).logits
            self.ids = logits[:, -1].argmax(-1, keepdim=True)
            self.at += 1


class Captured:
    def __init__(self, graph, batch):
        self.graph, self.ids = graph, torch.zeros(batch, 1, dtype=torch.int64, device="cuda")

    def steps(self, n):
        for _ in range(n):
            self.ids = self.graph.step(self.ids).argmax(-1, keepdim=True)


class StaticGraph:
    """StaticCache in a CUDA graph, as a compiled generate() runs it."""

    def __init__(self, model, cache, batch, history):
        model.set_attn_implementation("sdpa")
        self.ids = torch.zeros(batch, 1, dtype=torch.int64, device="cuda")
        self.at = torch.full((1, 1), history, dtype=torch.int64, device="cuda")
        run = lambda: model(input_ids=self.ids, position_ids=self.at, past_key_values=cache, use_cache=True).logits
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            run()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.ids.copy_(run()[:, -1].argmax(-1, keepdim=True))
            self.at.add_(1)

    def steps(self, n):
        for _ in range(n):
            self.graph.replay()


def variants(model, batch, history, spec, steps, reports):
    """(name, make) in the order in which they are made; memory is reported as each is filled."""
    room = history + steps + 64
    caches = {}

    def filled(name, make):
        gc.collect()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        caches[name] = cache = make()
        try:
            fill(model, cache, batch, history)
        except BaseException:
            caches.pop(name)  # its memory is for the others
            raise
        torch.cuda.synchronize()
        reports[name] = {"cache_bytes": torch.cuda.memory_allocated() - before,
                         "fill_peak_bytes": torch.cuda.max_memory_allocated() - before}
        if isinstance(cache, TerseCache):
            stats = cache.stats()
            c = model.config
            formula = c.num_hidden_layers * batch * c.num_key_value_heads * history * 2 * (
                128 * _bits(spec) // 8 + 2)
            reports[name].update(formula_bytes=formula, over_formula=reports[name]["cache_bytes"] / formula,
                                 stats_bytes_used=stats["bytes_used"], stats_bytes_reserved=stats["bytes_reserved"],
                                 stats_bytes_scratch=stats["bytes_scratch"])
        return cache

    def terse():
        model.set_attn_implementation("tersekv")
        return filled("terse", lambda: TerseCache.for_model(model, kv=spec))

    def graph():
        model.set_attn_implementation("tersekv")
        return Captured(DecodeGraph(model, caches["terse"], max_new_tokens=2 * steps), batch)

    yield "terse", lambda: Eager(model, terse(), "tersekv", batch, history)
    yield "dynamic", lambda: Eager(model, filled("dynamic", lambda: DynamicCache(config=model.config)), "sdpa", batch,
                                   history)
    yield "static", lambda: Eager(model, filled("static", lambda: StaticCache(config=model.config, max_cache_len=room)),
                                  "sdpa", batch, history)
    yield "terse graph", graph
    yield "static graph", lambda: StaticGraph(model, caches["static"], batch, history + WARM)


def _bits(spec):
    return int(spec[1])


@torch.no_grad()
def case(model, batch, history, options):
    reports, runners, row = {}, {}, {"batch": batch, "history": history}
    total = (WARM + options.rounds * options.steps) * 2
    for name, make in variants(model, batch, history, options.kv, total, reports):
        if " " in name and name.split()[0] not in runners:  # of a cache that does not fit
            continue
        try:
            runners[name] = runner = make()
            runner.steps(WARM)
            torch.cuda.synchronize()
        except Exception as error:  # out of memory, or what cannot be captured
            torch.cuda.synchronize()
            runners.pop(name, None)
            reports.setdefault(name, {})["refused"] = "does not fit" if isinstance(
                error, torch.cuda.OutOfMemoryError) else f"{type(error).__name__}: {str(error)[:200]}"
            gc.collect()
            torch.cuda.empty_cache()
    times = {name: [] for name in runners}
    for _ in range(options.rounds):
        for name, runner in runners.items():
            if name == "static graph" and "terse" not in runners:
                continue
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before, start = torch.cuda.memory_allocated(), time.perf_counter()
            runner.steps(options.steps)
            torch.cuda.synchronize()
            times[name].append(1e3 * (time.perf_counter() - start) / options.steps)
            reports.setdefault(name, {})["step_peak_bytes"] = torch.cuda.max_memory_allocated() - before
    for name, values in times.items():
        reports[name].update(ms=statistics.median(values), ms_min=min(values), ms_max=max(values))
    for runner in runners.values():
        if isinstance(runner, Captured):
            runner.graph.close()
    row["variants"] = reports
    if "dynamic" in times:
        row["speedup"] = {name: reports["dynamic"]["ms"] / reports[name]["ms"] for name in times}
    return row


def table(rows):
    names = ["dynamic", "static", "static graph", "terse", "terse graph"]
    print(f"{'batch':>5} {'history':>7} " + " ".join(f"{name + ' ms':>22}" for name in names) +
          f" {'GB dyn':>7} {'GB terse':>8} {'x':>5} {'x graph':>7}")
    for row in rows:
        cells = []
        for name in names:
            r = row["variants"].get(name, {})
            cells.append(f"{r['ms']:8.2f} [{r['ms_min']:.2f} {r['ms_max']:.2f}]" if "ms" in r else
                         "does not fit" if r.get("refused") == "does not fit" else "-")
        gb = [row["variants"].get(name, {}).get("cache_bytes", 0) / 1e9 for name in ("dynamic", "terse")]
        speed = [row.get("speedup", {}).get(name, 0) for name in ("terse", "terse graph")]
        print(f"{row['batch']:5} {row['history']:7} " + " ".join(f"{cell:>22}" for cell in cells) +
              f" {gb[0]:7.2f} {gb[1]:8.2f} {speed[0]:5.2f} {speed[1]:7.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default="8x8192,1x8192,32x8192,1x1024,8x1024,32x1024,1x4096,8x4096,32x4096,1x32768,"
                                           "8x32768,32x32768", help="batch x history, in order")
    parser.add_argument("--kv", default="k4v4", help="spec of TerseCache (kNvN)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12, help="tokens a round")
    parser.add_argument("--seconds", type=float, default=300, help="no case starts after them")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script")
    parser.add_argument("--json")
    options = parser.parse_args()
    start, rows = time.perf_counter(), []
    model = model_of(options.tiny)
    print(f"model of {sum(p.numel() for p in model.parameters()) / 1e9:.2f}e9 parameters in "
          f"{time.perf_counter() - start:.1f} s", flush=True)
    for text in options.cases.split(","):
        if time.perf_counter() - start > options.seconds:
            print(f"left out for lack of time: {text} and later")
            break
        batch, history = (int(x) for x in text.split("x"))
        rows.append(case(model, batch, history, options))
        gc.collect()
        torch.cuda.empty_cache()
        for name, report in rows[-1]["variants"].items():
            if "refused" in report:
                print(f"{batch} x {history} {name}: {report['refused']}", flush=True)
        print(f"{batch} x {history}: done at {time.perf_counter() - start:.0f} s", flush=True)
        if options.json:
            with open(options.json, "w") as file:
                json.dump({"rows": rows, "tersekv_version": __version__, "machine": torch.cuda.get_device_name(),
                           "torch": torch.__version__, "spec": options.kv}, file, indent=1)
    print(json.dumps([{"batch": r["batch"], "history": r["history"], **{f"{n}.{k}": v for n in ("terse", "dynamic")
                      for k, v in r["variants"].get(n, {}).items() if "bytes" in k or "over" in k}} for r in rows[:3]]))
    table(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
