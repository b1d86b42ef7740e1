# SPDX-License-Identifier: Apache-2.0
"""What a TerseCache stores and takes: bytes, batch invariance, threads, error of each family, wrong input."""
import gc
import warnings

import pytest
import torch
import transformers

import tersekv
from models import MODELS, forward, generate, left_padded, make, packed, stock, tokens
from tersekv import TerseCache, patch_model
from tersekv.hf import attention

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning", "ignore::FutureWarning")


class Attention(torch.nn.Module):
    """What the attention function asks of a module."""
    is_causal = True
    config = None


def step(cache, k, v, q, mask=None, layer=0):
    keys, values = cache.update(k, v, layer)
    return attention.attention(Attention(), q, keys, values, mask, scaling=k.shape[-1] ** -0.5)[0]


def rows(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# -- values ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kv", ["k4v4", "k3v5+sink=2+win=16", "kivi-k4v4", "k3tv3t", "fp8", "f16"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_does_not_depend_on_its_batch(kv, threads):
    """The same keys, values and queries alone and in a padded batch of 4: the same bits, decode and chunked prefill."""
    tersekv.set_num_threads(threads)
    lengths, width = [300, 120, 260, 10], 300
    k, v, q = rows(4, 2, width + 8, 64, seed=1), rows(4, 2, width + 8, 64, seed=2), rows(4, 4, width + 8, 64, seed=3)
    mask = torch.ones(4, width + 8, dtype=torch.bool)
    for row, length in enumerate(lengths):
        mask[row, :width - length] = False
    together = TerseCache(kv=kv, prefill="decode")
    alone = [TerseCache(kv=kv, prefill="decode") for _ in lengths]
    from tersekv.hf.masks import make_mask
    for first, end in [(0, width), (width, width + 5), (width + 5, width + 6), (width + 6, width + 8)]:
        n = end - first
        whole = step(together, k[:, :, first:end], v[:, :, first:end], q[:, :, first:end],
                     make_mask(4, n, end, first, 0, attention_mask=mask[:, :end]))
        for row, length in enumerate(lengths):
            begin = max(first, width - length)
            part = slice(begin, end)
            own = step(alone[row], *(x[row:row + 1, :, part] for x in (k, v, q)))
            assert torch.equal(whole[row, begin - first:], own[0])
            assert not whole[row, :begin - first].any()  # padding queries give zeros
    assert together.stats()["tokens"] == sum(cache.stats()["tokens"] for cache in alone)
    assert together.stats()["tokens_packed"] > 0 or kv == "f16" or "+" in kv


@pytest.mark.parametrize("kv, limit", [("f32", 1e-5), ("f16", 2e-3), ("k8v8", 0.02), ("k4v4", 0.2), ("kivi-k4v4", 0.2),
                                       ("k4tv4t", 0.15), ("fp8", 0.1), ("nvfp4", 0.3), ("k2v2", 0.8)])
def test_error_of_attention(kv, limit):
    """Relative error against attention over the exact rows, decode steps behind 700 tokens."""
    cache = TerseCache(kv=kv)
    k, v, q = rows(2, 2, 720, 64, seed=1), rows(2, 2, 720, 64, seed=2), rows(2, 4, 720, 64, seed=3)
    step(cache, k[:, :, :700], v[:, :, :700], q[:, :, :700])
    worst = 0
    for t in range(700, 720):
        out = step(cache, k[:, :, t:t + 1], v[:, :, t:t + 1], q[:, :, t:t + 1])
        want = torch.nn.functional.scaled_dot_product_attention(q[:, :, t:t + 1], k[:, :, :t + 1], v[:, :, :t + 1],
                                                                enable_gqa=True).transpose(1, 2)
        worst = max(worst, float((out - want).norm() / want.norm()))
    assert worst < limit
    decoded = cache.layers[0].keys
    assert decoded.shape == (2, 2, 720, 64)
    assert float((decoded - k).norm() / k.norm()) < max(limit, 1e-3)


def test_prefill_decode_does_not_depend_on_the_cut():
    k, v, q = rows(1, 2, 400, 64, seed=1), rows(1, 2, 400, 64, seed=2), rows(1, 4, 400, 64, seed=3)
    outs = []
    for sizes in ([400], [150, 250], [1] * 400):
        cache, at, out = TerseCache(kv="k4v4", prefill="decode"), 0, []
        for n in sizes:
            out.append(step(cache, *(x[:, :, at:at + n] for x in (k, v, q))))
            at += n
        outs.append(torch.cat(out, 1))
    assert torch.equal(outs[0], outs[1]) and torch.equal(outs[0], outs[2])


def test_sinks_softcap_and_window_reach_the_core():
    k, v, q = rows(1, 2, 60, 64, seed=1), rows(1, 2, 60, 64, seed=2), rows(1, 4, 60, 64, seed=3)
    sinks = torch.tensor([0.5, -1.0, 3.0, 0.0])
    cache, module = TerseCache(kv="f32"), Attention()
    for part in (slice(0, 59), slice(59, 60)):
        keys, values = cache.update(k[:, :, part], v[:, :, part], 0)
        out, _ = attention.attention(module, q[:, :, part], keys, values, None, scaling=0.125, sliding_window=16,
                                     softcap=2.0, s_aux=sinks)
    k2, v2 = (x.repeat_interleave(2, 1).double()[:, :, -16:] for x in (k, v))
    scores = torch.tanh(torch.einsum("bhd,bhtd->bht", q[:, :, 59].double(), k2) * 0.125 / 2) * 2
    weights = torch.softmax(torch.cat([scores, sinks.double().view(1, 4, 1)], -1), -1)[..., :-1]
    want = torch.einsum("bht,bhtd->bhd", weights, v2)
    assert (out[0, 0].double() - want[0]).abs().max() < 1e-5


def test_packed_specs_run_through_generate():
    for name in ("llama", "gemma3", "gpt_oss"):
        model = patch_model(make(name))
        ids, mask = left_padded([200, 150])
        reference = generate(model, "eager", stock(model), ids, mask, new=12)
        for kv in ("k8v8", "safe", "k4v4+sink=0+win=0"):
            cache = packed(model, kv)
            result = generate(model, "tersekv", cache, ids, mask, new=12)
            error = (result.logits[0] - reference.logits[0]).norm() / reference.logits[0].norm()
            assert error < 1e-5  # prefill=raw: the prompt attends its raw keys and values
            assert cache.stats()["decodes_because_of"] == []
            steps = [torch.equal(a.argmax(-1), b.argmax(-1)) for a, b in zip(result.logits, reference.logits)]
            assert steps[0] and (kv != "k8v8" or sum(steps) >= 10)


# -- bytes -------------------------------------------------------------------------------------------------------------
def test_stats_follow_the_formula():
    cache = TerseCache(kv="k4v4")
    for layer in range(2):
        step(cache, rows(1, 4, 8192, 64, seed=1), rows(1, 4, 8192, 64, seed=2), rows(1, 8, 8192, 64, seed=3),
             layer=layer)
    stats = cache.stats()
    formula = 2 * cache.layers[0].core().formula_bytes(8192)
    assert abs(stats["bytes_used"] / formula - 1) < 0.01
    assert stats["bytes_f16"] == 2 * 8192 * 4 * 128 * 2
    assert stats["ratio"] == pytest.approx(stats["bytes_f16"] / stats["bytes_used"]) and stats["ratio"] > 3.4
    assert stats["bytes_used"] <= stats["bytes_reserved"] < 1.01 * stats["bytes_used"] + (2 << 20)


def test_budget_is_kept():
    budget = 2_500_000
    cache = TerseCache(kv="k4v4", byte_budget=budget)
    k, q = rows(1, 2, 600, 64, seed=1), rows(1, 4, 600, 64, seed=2)
    with pytest.raises(MemoryError, match="2500000 bytes"):
        for _ in range(40):
            step(cache, k[:, :, :200], k[:, :, :200], q[:, :, :200])
            stats = cache.stats()
            assert stats["bytes_used"] <= stats["bytes_reserved"] <= budget - stats["bytes_scratch"]
    assert cache.stats()["tokens"] % 200 == 0 < cache.stats()["tokens"]
    cache.reset()
    step(cache, k, k, q)


def test_memory_goes_with_the_cache():
    cache = TerseCache(kv="k4v4")
    step(cache, *(rows(2, 2, 500, 64, seed=s) for s in (1, 2)), rows(2, 4, 500, 64, seed=3))
    memory, core = cache.store.memory, cache.layers[0].core()
    import copy
    twin = copy.deepcopy(cache)
    used = core.usage()["bytes_used"]
    del cache
    gc.collect()
    assert core.usage()["tokens"] == 1000  # the copy's
    del twin
    gc.collect()
    assert core.usage()["tokens"] == 0 and core.usage()["pages"] == 0 and used > 0 and memory is not None


def test_stock_layers_are_counted_apart():
    model = make("lfm2")
    cache = packed(model, "k4v4")
    forward(model, "tersekv", cache, tokens(1, 30))
    assert len(cache.stats()["layers"]) == 2 and len(cache.layers) == 4


# -- how to store ------------------------------------------------------------------------------------------------------
def test_presets_bits_and_protected_layers():
    config = make("gemma2").config
    assert TerseCache(config).spec == "k4v4"
    assert TerseCache(config, compression="balanced").spec == tersekv.canonical("balanced") == "kivi-k4v3"
    assert TerseCache(config, key_bits=5, value_bits=3).spec == "k5v3"
    assert TerseCache("k8v4").spec == "k8v4" and TerseCache(kv="k4v4+page=64").spec == "k4v4"
    specs = lambda **options: [layer.spec for layer in TerseCache(config, "k4v4", **options).layers]
    assert specs(protect_first=1, protect_last=1) == ["f16", "k4v4", "k4v4", "f16"]
    assert specs(protected_layers=[-2, 1]) == ["k4v4", "f16", "f16", "k4v4"]
    bf16 = transformers.LlamaConfig(num_hidden_layers=2, dtype=torch.bfloat16)
    assert TerseCache(bf16, protect_first=1).layers[0].spec == "bf16"


def llama(**options):
    return transformers.LlamaConfig(**{"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, **options})


@pytest.mark.parametrize("make_cache, message", [
    (lambda: TerseCache(kv="k4v4", compression="safe"), "kv and compression"),
    (lambda: TerseCache(compression="safe", key_bits=4, value_bits=4), "give one of them"),
    (lambda: TerseCache(key_bits=4), "together"),
    (lambda: TerseCache(key_bits=9, value_bits=4), "key_bits=9"),
    (lambda: TerseCache(compression="small"), "safe, balanced, compact, aggressive"),
    (lambda: TerseCache(kv="k4v9"), "k4v9"),
    (lambda: TerseCache(kv="auto"), "auto"),
    (lambda: TerseCache(prefill="fast"), "'raw' or 'decode'"),
    (lambda: TerseCache(arithmetic="int4"), "'int16', 'exact' or 'fast'"),
    (lambda: TerseCache(device="cuda"), "no CUDA"),
    (lambda: TerseCache(offloading=True), "does not offload"),
    (lambda: TerseCache(fold_output_rotation=True), "fold_output_rotation"),
    (lambda: TerseCache(protect_first=1), "for_model"),
    (lambda: TerseCache(llama(), protect_first=99), "0 to 32"),
    (lambda: TerseCache(llama(), protected_layers=[32]), "-32 to 31"),
    (lambda: TerseCache(llama(head_dim=20)), "head_dim 20"),
    (lambda: TerseCache(transformers.DeepseekV3Config()), "MLA"),
    (lambda: TerseCache(transformers.MambaConfig()), "no attention layers"),
])
def test_wrong_options_are_named(make_cache, message):
    with pytest.raises(ValueError) as caught:
        make_cache()
    assert message in str(caught.value)


# -- wrong input -------------------------------------------------------------------------------------------------------
def prepared():
    cache = TerseCache(kv="k4v4")
    step(cache, rows(2, 2, 9, 64, seed=1), rows(2, 2, 9, 64, seed=2), rows(2, 4, 9, 64, seed=3))
    return cache


@pytest.mark.parametrize("k, v, error, message", [
    (rows(2, 2, 1, 32, seed=1), rows(2, 2, 1, 32, seed=1), ValueError, "one model"),
    (rows(2, 4, 1, 64, seed=1), rows(2, 4, 1, 64, seed=1), ValueError, "2 KV heads"),
    (rows(3, 2, 1, 64, seed=1), rows(3, 2, 1, 64, seed=1), ValueError, "batch of 2"),
    (rows(2, 2, 1, 64, seed=1), rows(2, 2, 2, 64, seed=1), ValueError, "the same"),
    (rows(2, 2, 64, seed=1), rows(2, 2, 64, seed=1), ValueError, "[batch, kv_heads, tokens, head_dim]"),
    (rows(2, 2, 1, 64, seed=1).double(), rows(2, 2, 1, 64, seed=1).double(), TypeError, "float64"),
    (rows(2, 2, 1, 64, seed=1).to("meta"), rows(2, 2, 1, 64, seed=1), ValueError, "meta"),
])
def test_wrong_keys_are_named_and_change_nothing(k, v, error, message):
    cache = prepared()
    with pytest.raises(error) as caught:
        cache.update(k, v, 0)
    assert message in str(caught.value)
    assert cache.get_seq_length() == 9
    step(cache, rows(2, 2, 1, 64, seed=1), rows(2, 2, 1, 64, seed=2), rows(2, 4, 1, 64, seed=3))


def test_values_that_are_not_finite():
    cache = prepared()
    bad = rows(2, 2, 1, 64, seed=1)
    bad[1, 1, 0, 7] = float("nan")
    with pytest.raises(ValueError, match="not finite") as caught:
        step(cache, bad, rows(2, 2, 1, 64, seed=2), rows(2, 4, 1, 64, seed=3))
    assert "layer 0" in "".join(caught.value.__notes__)
    assert cache.get_seq_length() == 9 and cache.stats()["tokens"] == 18
    step(cache, rows(2, 2, 1, 64, seed=1), rows(2, 2, 1, 64, seed=2), rows(2, 4, 1, 64, seed=3))


def test_a_mask_that_shows_dropped_padding():
    model = make("llama")
    ids, mask = left_padded([9, 4])
    cache = packed(model)
    forward(model, "tersekv", cache, ids, mask)
    with pytest.raises(ValueError, match="slot 0 of batch row 1"):
        forward(model, "tersekv", cache, tokens(2, 1), torch.ones(2, 10, dtype=torch.long))


def test_a_cache_belongs_to_one_model():
    one, other = make("gemma3"), make("gpt_oss")
    cache = packed(one)
    forward(one, "tersekv", cache, tokens(1, 5))
    with pytest.raises(ValueError, match="another model"):
        forward(other, "tersekv", cache, tokens(1, 1))
    cache.reset()
    forward(one, "tersekv", cache, tokens(1, 5))


def test_stale_and_read_only_handles():
    cache = prepared()
    k, _ = cache.update(rows(2, 2, 1, 64, seed=1), rows(2, 2, 1, 64, seed=2), 0)
    assert k.shape == (2, 2, 10, 64) and "KVHandle" in repr(k)
    with pytest.raises(RuntimeError, match="read-only"):
        k.mul_(2)
    with pytest.raises(RuntimeError, match="read-only"):
        k[:, :, 0] = 0
    with pytest.warns(RuntimeWarning, match="tensor operation"):
        assert torch.isfinite(k + 1).all()
    cache.crop(-1)
    with pytest.raises(RuntimeError, match="stale"):
        k.clone()


@pytest.mark.parametrize("call", ["reset", "crop", "reorder_cache", "offload"])
def test_layers_are_not_driven_one_by_one(call):
    with pytest.raises((RuntimeError, ValueError), match="[cC]ache"):
        getattr(prepared().layers[0], call)(*([] if call in ("reset", "offload") else [0]))


def test_pickle_and_attention_weights_are_refused():
    import pickle
    with pytest.raises(TypeError, match="deepcopy"):
        pickle.dumps(prepared())
    with pytest.raises(ValueError, match="eager"):
        attention.attention(Attention(), *(rows(1, 2, 3, 64, seed=1),) * 3, None, output_attentions=True)
    with pytest.raises(ValueError, match="position bias"):
        attention.attention(Attention(), *(rows(1, 2, 3, 64, seed=1),) * 3, None, position_bias=torch.zeros(1))


def test_for_model_says_when_attention_is_another_one():
    model = make("llama")
    model.set_attn_implementation("sdpa")
    with pytest.warns(RuntimeWarning, match="patch_model"):
        TerseCache.for_model(model, "k4v4")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TerseCache.for_model(patch_model(model), "k4v4")
    assert set(MODELS) >= {"llama", "gemma3"}
