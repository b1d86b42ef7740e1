# SPDX-License-Identifier: Apache-2.0
"""TerseCache on a GPU, without a test runner: `python tests/python/cuda_check.py [--json FILE] [--only NAMES]`; exit code 0
when all pass. Kernels, codec and memory here, whole models in cuda_check_models.py.

Needs a wheel built with CUDA (k4v4 and k8v8 at head_dim 64 and 128), torch with CUDA, transformers.
"""
import argparse
import json
import sys
import traceback

import cuda_check_models  # noqa: F401  its checks
import torch
from cuda_tools import CHECKS, DEVICE, NO_STATS, NUMBERS, check, close, ids_of, tiny

from tersekv import Codec, TerseCache, _core, patch_model
from tersekv.hf.device import describe


@check
def kernels_against_float64():
    """append + attend over what decompress gives, in float64."""
    for spec, d in (("k4v4", 128), ("k8v8", 128), ("k4v4", 64), ("k8v8", 64)):
        for dtype in (torch.bfloat16, torch.float32):
            for q_len, group in ((1, 4), (5, 2), (16, 8)):
                g = torch.Generator(DEVICE).manual_seed(q_len)
                batch, heads, n, size = 3, 2, 200, 64
                native = _core.DeviceLayer(f"{spec}+sink=0+win=0", d, heads, 1)
                k, v = (torch.randn(batch, heads, n, d, device=DEVICE, generator=g).to(dtype) for _ in "kv")
                pages = torch.randint(0, 255, (16 * native.page_bytes,), dtype=torch.uint8, device=DEVICE)
                native.set_pages(pages.data_ptr())
                lengths = torch.tensor([200, 77, 16], dtype=torch.int32, device=DEVICE)
                table = torch.randperm(16, generator=torch.Generator().manual_seed(3))[:12].view(3, 4)
                t = torch.arange(n)
                slots = (table[:, t // size] * size + t % size).to(DEVICE)
                flag, stream = torch.zeros(1, dtype=torch.int32, device=DEVICE), torch.cuda.current_stream().cuda_stream
                for b in range(batch):
                    native.append(describe(k[b:b + 1]), describe(v[b:b + 1]), slots[b].data_ptr(), n, flag.data_ptr(),
                                  stream)
                kd, vd = (torch.empty(batch, heads, n, d, device=DEVICE) for _ in "kv")
                for b in range(batch):
                    native.decompress(describe(kd[b:b + 1]), describe(vd[b:b + 1]), slots[b].data_ptr(), n, stream)
                close(f"decoded keys {spec}-{d}", kd, k.float(), 0.3 if spec == "k4v4" else 0.02)
                q = torch.randn(batch, heads * group, q_len, d, device=DEVICE, generator=g).to(dtype)
                step = _core.DeviceStep()
                on_device = table.int().to(DEVICE)
                step.lengths, step.table, step.table_stride = lengths.data_ptr(), on_device.data_ptr(), 4
                step.batch, step.q_len = batch, q_len
                space = torch.empty(native.workspace_bytes(batch, heads * group, q_len), dtype=torch.uint8, device=DEVICE)
                step.workspace = space.data_ptr()
                out = torch.empty_like(q)
                native.plan(step, heads * group, 0, stream)
                native.attend(step, describe(q), describe(out), heads * group, d ** -0.5, 0, 0.0, 0, stream)
                want = torch.zeros(batch, heads * group, q_len, d, dtype=torch.float64, device=DEVICE)
                for b, length in enumerate(lengths.tolist()):
                    kb, vb = (x[b, :, :length].double().repeat_interleave(group, 0) for x in (kd, vd))
                    scores = q[b].double() @ kb.transpose(1, 2) * d ** -0.5
                    at = torch.arange(length, device=DEVICE)
                    seen = at[None] <= length - q_len + torch.arange(q_len, device=DEVICE)[:, None]
                    want[b] = torch.where(seen, scores, float("-inf")).softmax(-1) @ vb
                close(f"attention {spec}-{d} {str(dtype)[6:]}", out.double(), want, 2e-2)
                assert not flag.item()


@check
def chunks_take_constant_memory():
    """The peak of a chunk behind a long history, beside a decoded copy of one layer; and its answer in fp64."""
    batch, n, own, d = 2, 100_000, 80, 128
    for dtype, limit in ((torch.bfloat16, 2e-2), (torch.float32, 2e-3)):
        cache, g = TerseCache(kv="k8v8" + NO_STATS), torch.Generator(DEVICE).manual_seed(0)
        k, v = (torch.randn(batch, 2, n + own, d, device=DEVICE, generator=g).to(dtype) for _ in "kv")
        cache.update(k[:, :, :n], v[:, :, :n], 0)
        layer, q = cache.layers[0], torch.randn(batch, 8, own, d, device=DEVICE, generator=g).to(dtype)
        layer.flush()
        kd, vd = (torch.cat([getattr(layer, name)[:1].double(), x[:1, :, n:].double()], dim=2).repeat_interleave(4, 1)
                  for name, x in (("keys", k), ("values", v)))
        hidden = torch.ones(own, n + own, dtype=torch.bool, device=DEVICE).triu(n + 1)
        want = (q[:1].double() @ kd.transpose(2, 3) * d ** -0.5).masked_fill(hidden, float("-inf")).softmax(-1) @ vd
        del kd, vd
        cache.store.pages.reserve(cache.rows, [own] * batch)  # growing takes a copy of a layer's pages, not of its values
        handle, _ = cache.update(k[:, :, n:], v[:, :, n:], 0)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        out = layer.attend(handle.pending, q, None, config=None, scale=d ** -0.5, causal=True, window=None, softcap=None,
                           sinks=None)
        torch.cuda.synchronize()
        peak, copy_bytes = torch.cuda.max_memory_allocated() - before, 2 * batch * 2 * n * d * dtype.itemsize
        NUMBERS[f"peak of a chunk, MB, {str(dtype)[6:]}"] = peak / 1e6
        NUMBERS[f"a decoded layer, MB, {str(dtype)[6:]}"] = copy_bytes / 1e6
        assert peak < copy_bytes / 2, (peak, copy_bytes)
        close(f"chunk behind {n}, {str(dtype)[6:]}", out[:1].double(), want.transpose(1, 2), limit)


@check
def bytes_are_those_of_the_formula():
    model = patch_model(tiny(128, torch.bfloat16, layers=4))
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    cache = TerseCache.for_model(model, kv="k4v4" + NO_STATS)
    batch, n = 2, 8192
    g = torch.Generator(DEVICE).manual_seed(0)
    for layer in range(4):
        k, v = (torch.randn(batch, 2, n, 128, device=DEVICE, generator=g, dtype=torch.bfloat16) for _ in "kv")
        cache.update(k, v, layer)
    stats = cache.stats()
    del k, v
    torch.cuda.synchronize()
    grown = torch.cuda.memory_allocated() - before
    formula = 4 * batch * 2 * 2 * (n * (128 * 4 // 8 + 2) + 160 * 128 * 2)  # pages; raw rows
    NUMBERS["allocated over formula"] = grown / formula
    assert stats["bytes_used"] == formula, (stats["bytes_used"], formula)
    assert abs(grown - formula) <= 0.01 * formula + (1 << 20), (grown, formula)  # torch rounds up by as much as a MiB


@check
def codec_bytes_are_those_of_the_cpu():
    for spec in ("k4v4", "k8v8", "k2v3", "k5v6", "k6v2", "k3v5", "k4v8"):
        for d, head in ((64, 0), (128, 2), (256, 0)):
            codec = Codec(d, spec=spec, layer=3, kv_head=head)
            on_device = Codec(d, spec=spec, layer=3, kv_head=head, device=DEVICE)
            x = torch.randn(3, 37, d) * 3 + 1
            codec.fit_k(x), on_device.fit_k(x.to(DEVICE))
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                y = x.to(dtype)
                for side in "kv":
                    want, got = (getattr(c, f"compress_{side}")(z) for c, z in ((codec, y), (on_device, y.to(DEVICE))))
                    name = f"{spec}-{d} head {head} {side} {dtype}"
                    assert torch.equal(want[1], got[1].cpu()), f"scales differ: {name}"
                    assert torch.equal(want[0], got[0].cpu()), f"codes differ: {name}"
                    back = [getattr(c, f"decompress_{side}")(*p) for c, p in ((codec, want), (on_device, got))]
                    assert torch.equal(back[0], back[1].cpu()), f"decoded rows differ: {name}"


@check
def codec_in_compile_and_graphs():
    codec, x = Codec(128, 4, device=DEVICE), torch.randn(2, 8, 40, 128, device=DEVICE, dtype=torch.bfloat16)
    both = lambda y: codec.decompress_k(*codec.compress_k(y * 2), torch.bfloat16)
    want = both(x)
    torch.library.opcheck(torch.ops.tersekv.compress.default, (x, codec.spec, "k", 0, 0, [], []),
                          test_utils=("test_schema", "test_faketensor"))
    graph = torch.cuda.CUDAGraph()
    still = x.clone()
    with torch.cuda.graph(graph):
        out = both(still)
    still.copy_(x.flip(0))
    graph.replay()
    assert torch.equal(out, want.flip(0)), "a captured codec gives other values"
    try:
        compiled = torch.compile(both, fullgraph=True)(x)
    except Exception as error:  # no C++ compiler or Triton on the machine
        NUMBERS["torch.compile was refused: " + type(error).__name__] = 1.0
        compiled = torch.compile(both, fullgraph=True, backend="aot_eager")(x)
    close("compiled codec", compiled.float(), want.float(), 1e-2)


@check
def raw_rows_join_the_pages():
    """One token behind a long history, over what reads back: raw where it is seen raw."""
    for d, dtype, limit in ((128, torch.bfloat16, 1e-2), (64, torch.float16, 2e-3), (128, torch.float32, 1e-3)):
        for n, window, softcap, sinks in ((3000, None, None, False), (3000, 1000, None, True), (3000, 100, None, True),
                                          (3000, None, 3.0, False), (100, None, None, True)):
            cache, g = TerseCache(kv="k4v4"), torch.Generator(DEVICE).manual_seed(n)
            k, v = (torch.randn(3, 2, n + 5, d, device=DEVICE, generator=g).to(dtype) + 1 for _ in "kv")
            cache.update(k[:, :, :n], v[:, :, :n], 0)
            layer, logits = cache.layers[0], torch.randn(8, device=DEVICE) if sinks else None
            layer.flush()
            for size in (1, 4):
                at = cache.get_seq_length()
                q = torch.randn(3, 8, size, d, device=DEVICE, generator=g).to(dtype)
                handle, _ = cache.update(k[:, :, at:at + size], v[:, :, at:at + size], 0)
                out = layer.attend(handle.pending, q, None, config=None, scale=d ** -0.5, causal=True, window=window,
                                   softcap=softcap, sinks=logits)
                kd, vd = (x.double().repeat_interleave(4, 1) for x in (layer.keys, layer.values))
                scores = q[:, :, -1:].double() @ kd.transpose(2, 3) * d ** -0.5  # the last query
                scores = scores if softcap is None else torch.tanh(scores / softcap) * softcap
                if window:
                    scores[..., :at + size - window] = float("-inf")
                if sinks:
                    scores = torch.cat([scores, logits.double().view(1, 8, 1, 1).expand(3, 8, 1, 1)], -1)
                want = scores.softmax(-1)[..., :at + size] @ vd
                close(f"raw and packed {d} {str(dtype)[6:]} behind {n} window {window} softcap {softcap}",
                      out[:, -1:].double(), want.transpose(1, 2), limit)
            assert not cache.stats()["decodes_because_of"] and cache.stats()["not_finite"] is False


@check
def what_cannot_be_is_refused():
    model = patch_model(tiny())
    cases = [(lambda: TerseCache.for_model(model, kv="k4v4", byte_budget=1000), "byte_budget"),
             (lambda: TerseCache.for_model(model, kv="safe"), "CUDA pages hold"),
             (lambda: TerseCache.for_model(model, kv="k4v4", device="cpu"), "device")]
    for make, words in cases:
        try:
            model(input_ids=ids_of(1, 20), past_key_values=make())
            raise AssertionError(f"no error that says '{words}'")
        except ValueError as error:
            assert words in str(error), error


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="write results there")
    parser.add_argument("--only", help="checks whose names contain one of these texts, separated by commas")
    options = parser.parse_args()
    if not _core.cuda_kernels() or not torch.cuda.is_available():
        sys.exit(f"needs a wheel with CUDA kernels (this one has '{_core.cuda_kernels()}') and a GPU")
    failed = {}
    chosen = [f for f in CHECKS if not options.only or any(text in f.__name__ for text in options.only.split(","))]
    for function in chosen:
        try:
            function()
            torch.cuda.synchronize()
            print(f"ok      {function.__name__}", flush=True)
        except Exception:
            failed[function.__name__] = traceback.format_exc()
            print(f"FAILED  {function.__name__}\n{failed[function.__name__]}", flush=True)
    for name, value in NUMBERS.items():
        print(f"  {name:40} {value:.3e}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"failed": failed, "numbers": NUMBERS, "kernels": _core.cuda_kernels()}, file, indent=1)
    print(f"{len(chosen) - len(failed)} of {len(chosen)} checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
