# SPDX-License-Identifier: Apache-2.0
"""TerseCache on a GPU, without a test runner: `python tests/python/cuda_check.py [--json FILE] [--only NAMES]`; exit code 0 when all pass.

Needs a wheel built with CUDA (k4v4 and k8v8 at head_dim 64 and 128), torch with CUDA, transformers.
"""
import argparse
import copy
import json
import sys
import traceback

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from tersekv import Codec, DecodeGraph, TerseCache, TurboQuantEngine, _core, patch_model
from tersekv.hf.device import describe

DEVICE = "cuda"
NO_STATS = "+mean=off+scale=off"  # rows of a batch are then coded as they would be alone
CHECKS, NUMBERS = [], {}


def check(function):
    CHECKS.append(function)
    return function


def tiny(head_dim=64, dtype=torch.float32, layers=3, seed=0):
    """Weights small enough that rounding is not blown up: with 0.15 a row of a batch and the row alone differ by 2e-3 on
    the CPU too."""
    torch.manual_seed(seed)
    config = LlamaConfig(vocab_size=199, hidden_size=256, intermediate_size=256, num_hidden_layers=layers,
                         num_attention_heads=8, num_key_value_heads=2, head_dim=head_dim, max_position_embeddings=8192,
                         initializer_range=0.05, tie_word_embeddings=False, eos_token_id=None)
    return LlamaForCausalLM(config).to(DEVICE, dtype).eval()


def ids_of(batch, n, seed=1):
    return torch.randint(3, 199, (batch, n), generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@torch.no_grad()
def forced(model, cache, ids, prompt, mask=None):
    """Logits of every slot from prompt - 1 on, fed one by one after the prompt."""
    def run(low, high):
        given = {} if mask is None else {"attention_mask": mask[:, :high],
                                         "position_ids": (mask.cumsum(1) - 1).clamp_min(0)[:, low:high]}
        return model(input_ids=ids[:, low:high], past_key_values=cache, use_cache=True, **given).logits[:, -1]
    out = [run(0, prompt)]
    out += [run(at, at + 1) for at in range(prompt, ids.shape[1])]
    return torch.stack(out, dim=1).float()


def kl(want, got):
    want, got = want.double().log_softmax(-1), got.double().log_softmax(-1)
    return (want.exp() * (want - got)).sum(-1)


def close(name, got, want, limit):
    worst = ((got - want).abs().max() / want.abs().max()).item()
    NUMBERS[name] = worst
    assert worst < limit and worst == worst, f"{name}: {worst:.2e}, the limit is {limit:.0e}"


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
def logits_against_dynamic_cache():
    for d in (64, 128):
        model, ids = tiny(d), ids_of(2, 160)
        want = forced(model, DynamicCache(config=model.config), ids, 96)
        patch_model(model)
        for spec, limit in (("k8v8", 2e-5), ("k4v4", 5e-3)):
            got = forced(model, cache := TerseCache.for_model(model, kv=spec), ids, 96)
            NUMBERS[f"KL {spec}-{d}"] = value = kl(want, got).mean().item()
            NUMBERS[f"top1 {spec}-{d}"] = (want.argmax(-1) == got.argmax(-1)).double().mean().item()
            assert value < limit, f"{spec}-{d}: mean KL {value}"
            stats = cache.stats()
            assert stats["backend"].startswith("cuda") and not stats["not_finite"] and not stats["decodes_because_of"], stats
            assert stats["tokens"] == 2 * 160 * 3, stats["tokens"]
        assert NUMBERS[f"KL k4v4-{d}"] > NUMBERS[f"KL k8v8-{d}"] > 0


@check
def left_padding_equals_rows_alone():
    model, lengths = patch_model(tiny()), (96, 70, 33, 5)
    ids = ids_of(4, 130)
    mask = torch.ones_like(ids)
    for row, length in enumerate(lengths):
        mask[row, :96 - length] = 0
    spec = "k8v8" + NO_STATS
    got = forced(model, TerseCache.for_model(model, kv=spec), ids, 96, mask)
    for row, length in enumerate(lengths):
        alone = forced(model, TerseCache.for_model(model, kv=spec), ids[row:row + 1, 96 - length:], length)
        close(f"padded row of {length}", got[row:row + 1], alone, 1e-3)


@check
def chunks_equal_single_tokens():
    model = patch_model(tiny())
    ids, spec = ids_of(2, 150), "k8v8" + NO_STATS
    with torch.no_grad():
        one = TerseCache.for_model(model, kv=spec)
        want = forced(model, one, ids, 60)
        for prefill, limit in (("decode", 1e-3), ("raw", 1e-2)):  # raw: long chunks see their own tokens as they came
            for sizes in ((40, 50), (9, 16, 17, 48), (90,)):
                cache, at = TerseCache.for_model(model, kv=spec, prefill=prefill), 60
                model(input_ids=ids[:, :60], past_key_values=cache)
                for size in sizes:
                    logits = model(input_ids=ids[:, at:at + size], past_key_values=cache).logits.float()
                    close(f"chunk of {size}, {prefill}", logits, want[:, at - 59:at - 59 + size], limit)
                    at += size
                assert not cache.stats()["decodes_because_of"]


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
def crop_beams_and_copies():
    model = patch_model(tiny())
    ids, spec = ids_of(2, 140), "k8v8" + NO_STATS
    with torch.no_grad():
        cache = TerseCache.for_model(model, kv=spec)
        want = forced(model, cache, ids, 100)
        twin = copy.deepcopy(cache)
        cache.crop(-40)
        assert cache.get_seq_length() == 100
        again = torch.stack([model(input_ids=ids[:, at:at + 1], past_key_values=cache).logits[:, -1]
                             for at in range(100, 140)], dim=1)
        close("after crop", again.float(), want[:, 1:], 1e-5)
        next_ids = ids_of(2, 3, seed=5)
        first = model(input_ids=next_ids, past_key_values=cache).logits
        assert torch.equal(first, model(input_ids=next_ids, past_key_values=twin).logits), "a deep copy differs"
        twin.reorder_cache(torch.tensor([1, 1], device=DEVICE))
        both = model(input_ids=next_ids[:1].expand(2, 3), past_key_values=twin).logits
        assert torch.equal(both[0], both[1]), "rows of one beam differ"
    options = dict(max_new_tokens=24, do_sample=False, num_beams=3, pad_token_id=0, attention_mask=torch.ones_like(ids))
    got = model.generate(ids, past_key_values=TerseCache.for_model(model, kv="k8v8"), **options)
    model.set_attn_implementation("sdpa")
    want = model.generate(ids, past_key_values=DynamicCache(config=model.config), **options)
    NUMBERS["beam tokens that agree"] = (got[:, 140:] == want[:, 140:]).double().mean().item()
    assert got.shape == want.shape


@check
def graph_steps_equal_plain_steps():
    for padded in (False, True):
        model = patch_model(tiny(128, torch.bfloat16))
        ids, start = ids_of(3, 190), 140  # longer than what stays raw
        mask = None
        if padded:
            mask = torch.ones_like(ids)
            mask[1, :30] = 0
        with torch.no_grad():
            plain, cache = (TerseCache.for_model(model, kv="k4v4") for _ in range(2))
            want = forced(model, plain, ids, start, mask)
            forced(model, cache, ids[:, :start], start, mask)
            graph = DecodeGraph(model, cache, max_new_tokens=60)
            got = [graph.step(ids[:, at]).clone() for at in range(start, start + 30)]
            if not padded:  # a plain step in between
                got.append(model(input_ids=ids[:, start + 30:start + 31], past_key_values=cache).logits[:, -1])
                got += [graph.step(ids[:, at]).clone() for at in range(start + 31, start + 40)]
            close(f"graph steps, padded={padded}", torch.stack(got, dim=1).float(), want[:, 1:1 + len(got)], 1e-6)
            assert cache.get_seq_length() == start + len(got)
            try:
                for _ in range(200):
                    graph.step(ids[:, 0])
                raise AssertionError("steps beyond the reserved pages were taken")
            except RuntimeError as error:
                assert "max_new_tokens" in str(error), error
            graph.close()


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
    assert abs(grown - formula) <= 0.01 * formula, (grown, formula)


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


class Letters:
    """Letters as tokens."""

    def __call__(self, text, return_tensors):
        ids = torch.tensor([[3 + ord(c) % 190 for c in text]])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def decode(self, ids, skip_special_tokens):
        return " ".join(map(str, ids.tolist()))


@check
def generate_is_that_of_dynamic_cache():
    """Sampled with one seed, since greedy answers of random weights soon repeat one token: rows, batches with left padding,
    drafts looked up; and beams. Tokens that agree with DynamicCache's."""
    model, ids = tiny(128), ids_of(3, 60)
    mask = torch.ones_like(ids)
    mask[1, :17], mask[2, :59] = 0, 0
    cases = {"one row": (ids[:1], None, dict(do_sample=True)), "padded": (ids, mask, dict(do_sample=True)),
             "lookup": (ids[:1], None, dict(prompt_lookup_num_tokens=4)),
             "beams": (ids, mask, dict(num_beams=3, num_return_sequences=2))}
    for name, (given, seen, more) in cases.items():
        options = dict(max_new_tokens=120, pad_token_id=0,
                       attention_mask=torch.ones_like(given) if seen is None else seen, **{"do_sample": False, **more})
        model.set_attn_implementation("sdpa")
        torch.manual_seed(0)
        want = model.generate(given, past_key_values=DynamicCache(config=model.config), **options)
        patch_model(model)
        cache = TerseCache.for_model(model, kv="k8v8" + NO_STATS)
        torch.manual_seed(0)
        got = model.generate(given, past_key_values=cache, **options)
        assert got.shape == want.shape, (name, got.shape, want.shape)
        NUMBERS[f"tokens of generate() that agree, {name}"] = agree = (
            got[:, 60:] == want[:, 60:]).double().mean().item()
        assert agree > 0.5, f"{name}: {agree:.1%} of tokens"  # one draw that falls otherwise changes all that follow
        assert not cache.stats()["decodes_because_of"], cache.stats()["decodes_because_of"]


@check
def engine_on_the_device():
    model, engine = tiny(64), TurboQuantEngine(64, 8, DEVICE)
    prompt = "the quick brown fox jumps over the lazy dog"
    result = engine.generate(model, Letters(), prompt, max_new_tokens=40)
    ids = Letters()(prompt, "pt")["input_ids"].to(DEVICE)
    want = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False, pad_token_id=0,
                          past_key_values=DynamicCache(config=model.config))[0, ids.shape[1]:].tolist()
    NUMBERS["tokens of the engine that agree"] = agree = sum(
        a == b for a, b in zip(result["tokens"], want)) / len(want)
    assert agree > 0.9 and result["stats"]["backend"].startswith("cuda"), result
    filled, batch = DynamicCache(config=model.config), ids_of(3, 512)
    with torch.no_grad():
        model(input_ids=batch, past_key_values=filled)
        for bits, least in ((8, 0.9999), (4, 0.99)):
            one = TurboQuantEngine(64, bits, DEVICE)
            packed = one.compress_kv_cache(filled)
            stats = one.compression_stats(packed)
            NUMBERS[f"cosine of {bits} bits"] = stats["cosine_similarity"]
            assert least < stats["cosine_similarity"] < 1 and stats["ratio"] > 1.85, stats
        three = engine.compress_kv_3bit(filled)
        assert three.spec == "k3v3" and three.stats()["bytes_used"] < stats["bytes_used"]
        assert three.stats()["no_kernel"], "no kernel for 3 bits at 64 is in this build's set"
        model(input_ids=ids_of(3, 1, 5), past_key_values=filled)
    k, v, q = (torch.randn(2, h, n, 64, device=DEVICE, dtype=torch.bfloat16) for h, n in ((2, 50), (2, 50), (4, 3)))
    out = engine.fused_attention(q, engine.compress_keys(k), engine.compress_values(v))
    exact = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert torch.cosine_similarity(out.flatten().float(), exact.flatten().float(), dim=0) > 0.999
    tuned = engine.auto_tune(2000, bits=(3, 4, 8), repeats=3)
    for row in tuned["rows"]:
        NUMBERS[f"auto_tune {row['spec']} ms, {row['backend'][:16]}"] = row["ms"]
    assert tuned["best"]["similarity"] >= 0.99 and engine.spec == tuned["best"]["spec"]
    assert [row["backend"] == "decode and SDPA" for row in tuned["rows"]] == [True, False, False], tuned


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
