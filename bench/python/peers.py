#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packed caches of Python side by side: one model, one text, one run, KL against float16 keys and values at real bytes.

A prompt of half the context is fed at once (prefill=raw), then the second half token by token and scored. The model
computes in float32; every cache gets float16 keys and values. Bytes are those of the tensors that a cache holds at the
end (of ours: stats()). Run it in an environment of its own that has, beside tersekv[hf]: tiny-turboquant, turboquant-gpu,
turbo-attn, optimum-quanto, hqq (docs/perf/python.md). What is missing or fails is named, in the JSON under "refused".

    bench/python/peers.py MODEL.gguf TEXT [--context 2048] [--only k4v4,tiny] [--json rows.json]

With a JSON file of the same model, text and context that is there already, its rows are kept and the others are added.
"""
import argparse
import datetime
import hashlib
import json
import math
import pathlib
import sys
import time

import torch
from peer_caches import contestants, held_bytes, in_half, quiet_libraries, versions

from tersekv import _core
from tersekv.cli import load
from tersekv.evaluate import Progress


def machine():
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
    return f"{name}, {torch.get_num_threads()} threads"


@torch.no_grad()
def run(model, contestant, cache, ids, progress):
    half = ids.shape[1] // 2
    model.set_attn_implementation(contestant.attention)
    if contestant.patch is not None:
        contestant.patch(model)
    try:
        model(ids[:, :half], past_key_values=cache, logits_to_keep=1)
        getattr(cache, "end_prompt", lambda: None)()
        logits = []
        for i in range(half, ids.shape[1]):
            logits.append(model(ids[:, i:i + 1], past_key_values=cache).logits[0, -1].float().log_softmax(-1))
            progress.at(i - half + 1)
    finally:
        if contestant.unpatch is not None:
            contestant.unpatch(model)
    return torch.stack(logits)


def row_of(name, cache, logits, reference, targets, config, context):
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    f16 = 4 * config.num_hidden_layers * config.num_key_value_heads * head_dim * context
    kl = (reference.exp() * (reference - logits)).sum(-1)
    held = held_bytes(cache)
    return {"cache": name, "bytes": held, "ratio": f16 / held, "kl_mean": float(kl.mean()),
            "kl_p99": float(kl.double().quantile(0.99)),
            "top1": float((reference.argmax(-1) == logits.argmax(-1)).float().mean()),
            "ppl": math.exp(-float(logits.gather(1, targets[:, None]).mean())), "tokens": len(targets)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--only", help="names that contain one of these texts, separated by commas; and DynamicCache")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no further cache after these")
    parser.add_argument("--reference", help="file of DynamicCache's logits: read when it is there, else written")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    quiet_libraries()
    start = time.monotonic()
    model, tokenizer = load(arguments.model, "float32")
    text = pathlib.Path(arguments.text).read_text()
    ids = tokenizer(text, return_tensors="pt").input_ids[:, :arguments.context + 1]
    if ids.shape[1] <= arguments.context:
        sys.exit(f"peers.py: the text has {ids.shape[1]} tokens: a context of {arguments.context} needs one more")
    targets = ids[0, arguments.context // 2 + 1:]
    setting = {"model": pathlib.Path(arguments.model).name, "text": pathlib.Path(arguments.text).name,
               "ids": hashlib.sha256(ids.numpy().tobytes()).hexdigest()[:16], "context": arguments.context,
               "prefill": "raw", "kv": "float16", "versions": versions(), "machine": machine()}
    rows, refused, reference = {}, {}, None
    if arguments.json and pathlib.Path(arguments.json).exists():
        before = json.loads(pathlib.Path(arguments.json).read_text())
        differ = [key for key, value in setting.items() if before["setting"].get(key) != value]
        if differ:
            sys.exit(f"peers.py: {arguments.json} has rows of another setting ({', '.join(differ)}): remove it")
        rows = {row["cache"]: row for row in before["rows"]}
    kept = None
    if arguments.reference and pathlib.Path(arguments.reference).exists():
        kept = torch.load(arguments.reference)
        if kept["ids"] != setting["ids"]:
            sys.exit(f"peers.py: {arguments.reference} is of another text or context: remove it")
    only = arguments.only.split(",") if arguments.only else [""]
    for contestant in contestants(model, refused):
        name = contestant.name
        if (reference is not None or kept is not None) and (name in rows or not any(part in name for part in only)):
            continue
        if reference is not None and time.monotonic() - start > 60 * arguments.minutes:
            print(f"not begun: {name}", file=sys.stderr)
            continue
        model.set_attn_implementation(contestant.attention)
        try:
            cache = in_half(contestant.make()) if contestant.attention != "tersekv" else contestant.make()
            logits = run(model, contestant, cache, ids[:, :-1], Progress(name, arguments.context // 2))
        except Exception as error:
            refused[name] = f"{type(error).__name__}: {str(error)[:300]}"
            continue
        logits = logits[-len(targets):]
        if reference is None:
            reference = logits if kept is None else kept["logits"]
            if kept is None and arguments.reference:
                torch.save({"ids": setting["ids"], "logits": logits}, arguments.reference)
        rows[name] = row = row_of(name, cache, logits, reference, targets, model.config, arguments.context)
        print(f"{name:36} {row['bytes']:11,} {row['ratio']:5.2f}x  KL {row['kl_mean']:.6f}  p99 {row['kl_p99']:.4f}  "
              f"top-1 {row['top1']:.2%}  ppl {row['ppl']:.3f}", flush=True)
    for name, reason in refused.items():
        print(f"refused: {name}: {reason}", file=sys.stderr)
    if arguments.json:
        envelope = {"setting": setting, "rows": list(rows.values()), "refused": refused, "commit": _core.commit(),
                    "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
        pathlib.Path(arguments.json).write_text(json.dumps(envelope, indent=1) + "\n")


if __name__ == "__main__":
    main()
