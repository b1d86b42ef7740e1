#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packed caches of Python side by side: one model, one text, one run, KL against exact keys and values at real bytes.

A prompt of half the context is fed at once (prefill=raw), then the second half token by token and scored. Bytes are
those of the tensors that a cache holds at the end (of ours: stats()). Run it in an environment of its own that has, beside
tersekv[hf]: tiny-turboquant, optimum-quanto, turboquant-gpu, turbo-attn. What is missing, fails or has no CPU code is
named, in the JSON under "refused".

    bench/python/peers.py MODEL.gguf TEXT [--context 1024] [--only k4v4,tiny] [--json rows.json]
"""
import argparse
import importlib
import importlib.metadata
import json
import math
import pathlib
import sys

import torch
from transformers import DynamicCache

from tersekv import TerseCache
from tersekv.cli import load
from tersekv.evaluate import Progress


def tensor_bytes(value, seen):
    """Of all tensors that an object holds, each storage once."""
    if torch.is_tensor(value):
        inner = [getattr(value, name) for name in getattr(value, "__dict__", {})] if hasattr(value, "_data") else []
        if inner or hasattr(value, "_data"):  # a quantised tensor of several
            return sum(tensor_bytes(getattr(value, name, None), seen) for name in ("_data", "_scale", "_shift"))
        storage = value.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() == 0:
            return 0
        seen.add(storage.data_ptr())
        return storage.nbytes()
    if isinstance(value, (list, tuple)):
        return sum(tensor_bytes(item, seen) for item in value)
    return 0


def held_bytes(cache):
    if isinstance(cache, TerseCache):
        return cache.stats()["bytes_used"]
    seen = set()
    return sum(tensor_bytes(value, seen) for layer in cache.layers for value in vars(layer).values())


def version_of(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def gpu_kernels(package, module):
    """Why a package whose codec is GPU kernels alone cannot run here."""
    if version_of(package) is None:
        return "not installed"
    try:
        importlib.import_module(module)
    except ImportError as missing:
        return f"import {module}: {missing}"
    return "its codec and attention are CUDA kernels: no NVIDIA GPU here" if not torch.cuda.is_available() else \
        "no adapter for it in this program"


def contestants(model, refused):
    """(name, attention, makes a cache)"""
    refused["turboquant-gpu"] = gpu_kernels("turboquant-gpu", "turboquant_gpu.compress")
    refused["turbo-attn"] = gpu_kernels("turbo-attn", "tkv")
    yield "DynamicCache", "sdpa", lambda: DynamicCache(config=model.config)
    for spec in ("k8v8", "k4v4", "kivi-k4v4", "k4v4+sink=0+win=0", "k3v3", "k2v2"):
        yield f"tersekv {spec}", "tersekv", lambda spec=spec: TerseCache.for_model(model, spec)
    try:
        from tiny_turboquant import TinyKVCache

        class Tiny(TinyKVCache):
            def update(self, key_states, value_states, layer_idx, *_, **__):  # 0.18.0 knows no further arguments
                return super().update(key_states, value_states, layer_idx)

        for name in ("safe", "balanced", "compact", "aggressive"):
            yield f"tiny-turboquant {name}", "sdpa", lambda name=name: Tiny(compression=name)
    except ImportError as missing:
        refused["tiny-turboquant"] = str(missing)
    try:
        import optimum.quanto  # noqa: F401
        from transformers.cache_utils import QuantizedCache
        for bits in (4, 2):
            yield f"QuantizedCache quanto {bits}", "sdpa", \
                lambda bits=bits: QuantizedCache(backend="quanto", config=model.config, nbits=bits)
    except ImportError as missing:
        refused["QuantizedCache quanto"] = str(missing)


@torch.no_grad()
def run(model, attention, cache, ids, progress):
    half = ids.shape[1] // 2
    model.set_attn_implementation(attention)
    model(ids[:, :half], past_key_values=cache)
    logits = []
    for i in range(half, ids.shape[1]):
        logits.append(model(ids[:, i:i + 1], past_key_values=cache).logits[0, -1].float().log_softmax(-1))
        progress.at(i - half + 1)
    return torch.stack(logits)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--only", help="names that contain one of these texts, separated by commas; and DynamicCache")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    model, tokenizer = load(arguments.model, "float32")
    ids = tokenizer(pathlib.Path(arguments.text).read_text(), return_tensors="pt").input_ids[:, :arguments.context + 1]
    rows, reference, refused = [], None, {}
    targets = ids[0, ids.shape[1] // 2 + 1:]
    only = ["DynamicCache", *arguments.only.split(",")] if arguments.only else [""]
    for name, attention, make in contestants(model, refused):
        if not any(text in name for text in only):
            continue
        try:
            cache = make()
            logits = run(model, attention, cache, ids[:, :-1], Progress(name, (ids.shape[1] - 1) // 2))
        except Exception as error:
            refused[name] = f"{type(error).__name__}: {str(error)[:300]}"
            continue
        logits = logits[-len(targets):]
        reference = logits if reference is None else reference
        config = model.config
        f16 = 4 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * (ids.shape[1] - 1)
        kl = (reference.exp() * (reference - logits)).sum(-1)
        rows.append({"cache": name, "bytes": held_bytes(cache), "ratio": f16 / held_bytes(cache),
                     "kl_mean": float(kl.mean()), "kl_p99": float(kl.double().quantile(0.99)),
                     "top1": float((reference.argmax(-1) == logits.argmax(-1)).float().mean()),
                     "ppl": math.exp(-float(logits.gather(1, targets[:, None]).mean())), "prefill": "raw",
                     "context": ids.shape[1] - 1, "tokens": len(targets)})
        row = rows[-1]
        print(f"{name:28} {row['bytes']:11,} {row['ratio']:5.2f}x  KL {row['kl_mean']:.5f}  p99 {row['kl_p99']:.4f}  "
              f"top-1 {row['top1']:.2%}  ppl {row['ppl']:.3f}", flush=True)
    for name, reason in refused.items():
        print(f"refused: {name}: {reason}", file=sys.stderr)
    if arguments.json:
        packages = ("tersekv", "torch", "transformers", "tiny-turboquant", "optimum-quanto", "turboquant-gpu", "turbo-attn")
        envelope = {"rows": rows, "refused": refused, "versions": {name: version_of(name) for name in packages}}
        pathlib.Path(arguments.json).write_text(json.dumps(envelope, indent=1) + "\n")


if __name__ == "__main__":
    main()
