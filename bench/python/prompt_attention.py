#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CPU time of a prompt's attention in one layer: torch over raw rows, the core in its ways, and storing alone.

    bench/python/prompt_attention.py      the table of docs/decisions/0011-prompts-in-torch.md; needs torch, no model
"""
import time

import torch

import tersekv
from tersekv import _core
from tersekv.hf.layer import describe

ATTEND = torch.nn.functional.scaled_dot_product_attention


def cpu_time(work, repeats=3):
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


def core_step(q, k, v, arithmetic="int16", prefill="raw", piece=None, attend=True):
    """-> output [1, n, heads, d], bytes of scratch"""
    heads, n, d = q.shape[1:]
    core = _core.LayerCache(_core.Memory(0), "k4v4", heads, k.shape[1], d, d, 0, prefill, arithmetic)
    out = torch.empty(1, n, heads, d)
    for first in range(0, n, piece or n):
        part = slice(first, first + (piece or n))
        arguments = [(0, 0, k[:, :, part].shape[2], first)], k[:, :, part].shape[2], describe(k[:, :, part]), \
            describe(v[:, :, part])
        if attend:
            core.step(*arguments, describe(q[:, :, part]), describe(out[:, part].transpose(1, 2)), d ** -0.5)
        else:
            core.step(*arguments)
    return out, core.usage()["scratch"]


def main():
    torch.set_num_threads(1)
    tersekv.set_num_threads(1)
    for heads, kv_heads, d in ((9, 3, 64), (32, 8, 128)):
        for n in (512, 2048):
            q, k, v = (torch.randn(1, h, n, d) for h in (heads, kv_heads, kv_heads))
            exact = ATTEND(q.double(), k.double(), v.double(), is_causal=True, enable_gqa=True).transpose(1, 2)
            rows = []
            for dtype in (torch.float32, torch.bfloat16):
                x = [t.to(dtype) for t in (q, k, v)]
                run = lambda x=x: ATTEND(*x, is_causal=True, enable_gqa=True)
                rows.append((f"torch {str(dtype)[6:]}", cpu_time(run), run().transpose(1, 2), 0))
            for name, options in (("core raw int16", {}), ("core raw exact", dict(arithmetic="exact")),
                                  ("core decode", dict(prefill="decode", piece=512)),
                                  ("storing alone", dict(attend=False, piece=512))):
                out, scratch = core_step(q, k, v, **options)
                rows.append((name, cpu_time(lambda: core_step(q, k, v, **options)),
                             out if options.get("attend", True) else None, scratch))
            for name, seconds, out, scratch in rows:
                error = "" if out is None else f"error {float((out.double() - exact).norm() / exact.norm()):.1e}"
                print(f"{heads}/{kv_heads} d={d} n={n:5} {name:15} {1000 * seconds:8.1f} ms {seconds / rows[0][1]:5.2f}x  "
                      f"scratch {scratch / 1e6:6.2f} MB  {error}", flush=True)


if __name__ == "__main__":
    main()
