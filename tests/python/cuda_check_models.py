# SPDX-License-Identifier: Apache-2.0
"""Checks of cuda_check.py with whole models: against DynamicCache, rows alone, plain steps, generate() and the engine."""
import copy

import torch
from cuda_tools import DEVICE, NO_STATS, NUMBERS, check, close, forced, ids_of, kl, tiny
from transformers import DynamicCache

from tersekv import DecodeGraph, TerseCache, TurboQuantEngine, patch_model


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
            assert least < stats["cosine_similarity"] < 1 and stats["ratio"] > 1.1, stats  # 160 of 512 rows are raw too
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
