#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One table: decode attention from packed pages beside cuDNN's and FlashAttention-2's in bf16, in one run.

Both sides are timed alone (a graph of one call between two events) and in a chain (a graph of one call a pool); pools
rotate over at least 400 MB, so that the cache of the device does not help. Needs PyTorch and tersekv_gpu_bench.
"""
import argparse
import json
import os
import statistics
import subprocess

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

# B, heads, KV heads, head_dim, context; specs that are timed on it
MAIN = [(1, 32, 8, 128, 4096), (1, 32, 8, 128, 32768), (1, 32, 8, 128, 131072), (8, 32, 8, 128, 8192),
        (32, 32, 8, 128, 8192), (8, 32, 8, 128, 32768), (64, 32, 8, 128, 4096)]
MORE = [(32, 8, 8, 128, 8192), (32, 56, 8, 128, 8192), (32, 64, 8, 128, 8192), (16, 24, 8, 128, 16384),
        (32, 32, 8, 64, 8192), (32, 16, 4, 256, 8192), (1, 16, 4, 256, 32768)]
WIDTHS = ["k4v4", "k3v3", "k2v2", "k4v2", "k8v4", "k5v5", "k6v6", "k8v8", "bf16"]
ROTATED = 400e6
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "fa2": SDPBackend.FLASH_ATTENTION}


def capture(calls):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def microseconds(graph):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3


def peer(shape, backend):
    """(single, chain) in microseconds; None when the backend does not take the shape."""
    batch, heads, kv_heads, d, context = shape
    size = batch * kv_heads * context * d * 4
    pools = max(2, min(8, int(ROTATED / size) + 1))
    q = torch.randn(batch, heads, 1, d, device="cuda", dtype=torch.bfloat16)
    kv = [[torch.randn(batch, kv_heads, context, d, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
          for _ in range(pools)]
    try:
        with sdpa_kernel(BACKENDS[backend]):
            calls = [lambda k=k, v=v: F.scaled_dot_product_attention(q, k, v, enable_gqa=heads != kv_heads)
                     for k, v in kv]
            out = calls[0]().float()
            assert torch.isfinite(out).all() and out.abs().sum() > 0
            ones, chain = [capture([c]) for c in calls], capture(calls)
            for graph in ones:
                graph.replay()
            single = statistics.median(microseconds(ones[i % pools]) for i in range(32))
            return single, statistics.median(microseconds(chain) / pools for _ in range(12))
    except RuntimeError as error:
        print(f"{backend} {shape}: {str(error).splitlines()[0]}")
        return None


def ours(programs, shapes, specs, extra=()):
    """Rows of tersekv_gpu_bench as dictionaries."""
    text = ";".join(f"{b},{h},{kv},{q},{n}" for b, h, kv, q, n in shapes)
    run = subprocess.run([os.path.join(programs, "tersekv_gpu_bench"), "attend", text, ",".join(specs), *extra],
                         capture_output=True, text=True, check=True)
    return [dict(word.split("=", 1) for word in line.split()[1:]) for line in run.stdout.splitlines()
            if line.startswith("attend ")]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--quick", action="store_true", help="the main shapes at k4v4 only")
    options = parser.parse_args()
    torch.manual_seed(0)
    rows = []
    for shape in MAIN + ([] if options.quick else MORE):
        batch, heads, kv_heads, d, context = shape
        peers = {name: peer(shape, name) for name in BACKENDS}
        torch.cuda.empty_cache()
        known = {name: times for name, times in peers.items() if times}
        best = min(known, key=lambda name: known[name][0])
        widths = ["k4v4"] if options.quick or shape in MORE else WIDTHS
        for row in ours(options.programs, [(batch, heads, kv_heads, 1, context)], [f"{w}-{d}" for w in widths]):
            rows.append({
                "shape": f"{batch},{heads},{kv_heads},{d},{context}", "spec": row["spec"].split("-")[0],
                "us": float(row["single_us"]), "us_chain": float(row["chain_us"]),
                "roof_share": float(row["roof_single"]), "roof_share_chain": float(row["roof_chain"]),
                "peer": best, "peer_us": round(known[best][0], 1), "peer_us_chain": round(known[best][1], 1),
                "fa2_us": round(known["fa2"][0], 1) if "fa2" in known else None,
                "ratio": round(known[best][0] / float(row["single_us"]), 2),
                "ratio_chain": round(known[best][1] / float(row["chain_us"]), 2)})
    print("| B,heads,KV heads,d,context | spec | us | chain us | roof, single / chain | best bf16 | us | FA2 us | "
          "ratio | chain |\n|---|---|---|---|---|---|---|---|---|---|")
    for r in rows:
        print(f"| {r['shape']} | {r['spec']} | {r['us']:.1f} | {r['us_chain']:.1f} | {r['roof_share']:.0%} / "
              f"{r['roof_share_chain']:.0%} | {r['peer']} | {r['peer_us']} | {r['fa2_us']} | **{r['ratio']:.2f}x** | "
              f"{r['ratio_chain']:.2f}x |")
    if not options.quick:
        run = subprocess.run([os.path.join(options.programs, "tersekv_gpu_bench"), "append", "k4v4-128,k2v2-128,k8v8-128"],
                             capture_output=True, text=True, check=True)
        print(run.stdout)
        for row in ours(options.programs, [(32, 32, 8, q, 8192) for q in (2, 4, 16)], ["k4v4-128"]):
            print(f"q_len {row['q_len']} at 32,32,8,128,8192: {row['single_us']} us")
        for page in ("16", "128"):
            for row in ours(options.programs, [(32, 32, 8, 1, 8192), (1, 32, 8, 1, 32768)], ["k4v4-128"],
                            ["--page", page]):
                print(f"pages of {page} at {row['B']},32,8,128,{row['context']}: {row['single_us']} us")
    with open(os.path.join(options.out, "h200.json"), "w", encoding="utf-8") as file:
        json.dump({"rows": rows, "machine": torch.cuda.get_device_name(0), "torch": torch.__version__}, file, indent=1)


if __name__ == "__main__":
    main()
