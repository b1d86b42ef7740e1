# SPDX-License-Identifier: Apache-2.0
"""Input that a TerseCache cannot take: an error that names the value and the limit, and a cache that goes on; and input
that only looks wrong. (More of it, by room: test_cache.py, test_codec.py, test_failures.py.)"""
import pytest
import torch
import transformers

from models import COMMON, forward, generate, left_padded, make, packed, stock, tokens
from test_cache import rows, step
from tersekv import TerseCache, patch_model

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning", "ignore::FutureWarning")


def llama(**changes):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**COMMON, **changes})).eval()


@pytest.mark.parametrize("kv, head_dim, message", [
    ("k4v4", 24, "head_dim 24, and this version packs multiples of 16 from 32"),
    ("k4v4", 40, "head_dim 40, and this version packs multiples of 16"),
    ("k4v4", 176, "head_dim 176, and a Hadamard transform exists for .* rot=none or rot=haar"),
    ("mxfp4", 48, "head_dim 48, and .* stores blocks of 32"),
])
def test_head_dims_are_refused_when_the_cache_is_made(kv, head_dim, message):
    model = patch_model(llama(head_dim=head_dim))
    with pytest.raises((ValueError, RuntimeError), match=message):
        TerseCache.for_model(model, kv)
    ids = tokens(1, 20)  # a raw cache takes them
    want = forward(model, "eager", stock(model), ids)
    assert float((forward(model, "tersekv", packed(model, "f32"), ids) - want).abs().max()) < 1e-4


def test_a_head_dim_is_refused_at_the_first_token_without_a_config():
    cache = TerseCache(kv="k4v4")
    with pytest.raises((ValueError, RuntimeError), match="head_dim 24"):
        step(cache, rows(1, 2, 3, 24, seed=1), rows(1, 2, 3, 24, seed=2), rows(1, 4, 3, 24, seed=3))
    step(cache, rows(1, 2, 3, 64, seed=1), rows(1, 2, 3, 64, seed=2), rows(1, 4, 3, 64, seed=3))


@pytest.mark.parametrize("which", ["keys", "values", "both"])
def test_mixed_devices(which):
    """'meta' stands for a device of which this build cannot read memory."""
    cache = TerseCache(kv="k4v4")
    k, v = rows(1, 2, 3, 64, seed=1), rows(1, 2, 3, 64, seed=2)
    step(cache, k, v, rows(1, 4, 3, 64, seed=3))
    with pytest.raises(ValueError, match="device 'meta' is not known"):
        cache.update(k if which == "values" else k.to("meta"), v if which == "keys" else v.to("meta"), 0)
    assert cache.get_seq_length() == 3


def test_queries_of_another_device():
    cache = TerseCache(kv="k4v4")
    with pytest.raises(ValueError, match="device 'meta' is not known"):
        step(cache, rows(1, 2, 3, 64, seed=1), rows(1, 2, 3, 64, seed=2), rows(1, 4, 3, 64, seed=3).to("meta"))
    assert cache.get_seq_length() == 0


@pytest.mark.parametrize("options, message", [
    (dict(compression="extreme"), "compression 'extreme' is not known: one of safe, balanced, compact, aggressive"),
    (dict(compression="k4v4"), "compression 'k4v4' is not known"),
    (dict(kv="k44"), "k44"),
    (dict(kv="k4v4", compression="safe"), "kv and compression both say"),
    (dict(compression="safe", key_bits=4, value_bits=4), "compression and key_bits/value_bits both say"),
    (dict(kv="k4v4", key_bits=4, value_bits=4), "kv and key_bits/value_bits both say"),
    (dict(key_bits=4), "key_bits and value_bits are given together"),
    (dict(key_bits=4, value_bits=9), "value_bits=9: a whole number from 2 to 8"),
    (dict(key_bits=True, value_bits=4), "key_bits=True"),
    (dict(bits=4), "pass profile= with it"),
    (dict(device="cuda:7"), "CUDA|cuda"),
    (dict(device="tpu"), "device 'tpu' is not known"),
])
def test_presets_bits_and_devices(options, message):
    with pytest.raises(ValueError, match=message):
        TerseCache(make("llama").config, **options)


def test_a_cache_of_another_model():
    """Of other shapes, and of the same ones, where nothing but the tokens tells."""
    one, other = llama(head_dim=64), llama(head_dim=64)
    cache = packed(one, "k4v4")
    forward(one, "tersekv", cache, tokens(1, 9))
    with pytest.raises(ValueError, match="tokens of another model: call reset"):
        forward(other, "tersekv", cache, tokens(1, 1))
    wide = llama(head_dim=128)
    with pytest.raises(ValueError, match="layer 0 holds 2 KV heads of 64 and 64 channels, and got 2 of 128"):
        forward(wide, "tersekv", cache, tokens(1, 1))
    deep = llama(head_dim=64, num_hidden_layers=4)
    fresh = packed(one, "k4v4")
    with pytest.raises(ValueError, match="layer 3 is not there: this cache was made for a model of 3"):
        forward(deep, "tersekv", fresh, tokens(1, 4))
    forward(one, "tersekv", cache, tokens(1, 1))
    assert cache.get_seq_length() == 10


def test_float64_models():
    model = make("llama").double()
    try:
        cache = packed(model, "k4v4")
        with pytest.raises(TypeError, match="keys are float64: the cache takes float32, float16 and bfloat16"):
            forward(model, "tersekv", cache, tokens(1, 4))
        assert cache.get_seq_length() == 0
    finally:
        model.float()


@pytest.mark.parametrize("kv", ["f32", "k4v4"])
def test_arrays_that_are_not_contiguous_are_taken(kv):
    """Every second head, token or channel of larger ones, reversed batches: the same bits as of copies."""
    k, v, q = (rows(4, 2 * h, 80, 128, seed=s)[::2, ::2, ::2, ::2] for h, s in ((2, 1), (2, 2), (4, 3)))
    assert not k.is_contiguous() and k.stride(-1) == 2
    got = step(TerseCache(kv=kv, prefill="decode"), k, v, q)
    want = step(TerseCache(kv=kv, prefill="decode"), *(x.contiguous() for x in (k, v, q)))
    assert torch.equal(got, want)
    heads_last = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v, q)]
    assert torch.equal(step(TerseCache(kv=kv, prefill="decode"), *heads_last), want)
    one = k[:1].expand(2, -1, -1, -1)  # one row as a batch of two, stride 0
    other = v[:1].expand(2, -1, -1, -1)
    twice = step(TerseCache(kv=kv, prefill="decode"), one, other, q[:1].expand(2, -1, -1, -1))
    assert torch.equal(twice[0], want[0]) and torch.equal(twice[1], want[0])


def test_masks_that_cannot_be():
    model, ids = make("llama"), tokens(2, 6)
    cache = packed(model, "k4v4")
    forward(model, "tersekv", cache, ids)
    with pytest.raises(ValueError, match="the attention mask has 3 rows, the batch 2"):
        forward(model, "tersekv", cache, tokens(2, 1), torch.ones(3, 7, dtype=torch.long))
    assert cache.get_seq_length() == 6
    shown = torch.ones(2, 6, dtype=torch.long)
    shown[1, :4] = 0
    padded = packed(model, "k4v4")
    forward(model, "tersekv", padded, ids, shown)
    with pytest.raises(ValueError, match="the mask shows slot 0 of batch row 1, which was padding"):
        forward(model, "tersekv", padded, tokens(2, 1), torch.ones(2, 7, dtype=torch.long))
    for shape in ((2, 1, 1, 99), (2, 1, 1, 5), (2, 1, 3, 7), (3, 1, 1, 7)):
        with pytest.raises(ValueError, match=r"the mask has shape .* need \[2, 1, 1, 7\]"):
            forward(model, "tersekv", padded, tokens(2, 1), torch.ones(shape, dtype=torch.bool))
    forward(model, "tersekv", padded, tokens(2, 1), torch.cat([shown, torch.ones(2, 1, dtype=torch.long)], 1))
    assert padded.get_seq_length() == 7


def test_a_row_that_is_padding_alone():
    """Its output is 0, it stores nothing, and its neighbour answers as alone."""
    model, ids = make("llama"), tokens(2, 30)
    mask = torch.ones_like(ids)
    mask[0] = 0
    cache = packed(model, "k8v8")
    got = forward(model, "tersekv", cache, ids, mask)
    assert torch.isfinite(got).all() and cache.stats()["tokens"] == 3 * 30
    assert torch.equal(got[1], forward(model, "tersekv", packed(model, "k8v8"), ids[1:])[0]) or \
        float((got[1] - forward(model, "tersekv", packed(model, "k8v8"), ids[1:])[0]).abs().max()) < 1e-5


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("padding", [511, 513, 700, 1100])
def test_left_padding_longer_than_a_chunk(name, padding):
    """Attention walks positions in chunks of 512, and a row may begin behind several that hold nothing of it."""
    model = make(name)
    ids, mask = left_padded([20 + padding, 20])
    want = generate(model, "eager", stock(model), ids, mask, new=8)
    got = generate(model, "tersekv", packed(model), ids, mask, new=8)
    assert torch.equal(want.sequences, got.sequences)
    alone = generate(model, "tersekv", packed(model, "k4v4"), ids[1:, padding:], new=8)
    both = generate(model, "tersekv", packed(model, "k4v4"), ids, mask, new=8)
    assert torch.equal(alone.sequences[0, -8:], both.sequences[1, -8:])


@pytest.mark.parametrize("kv", ["k4v4", "kivi-k4v4", "k3v3+win=0+sink=0"])
def test_a_row_behind_a_long_padding_is_the_row_alone(kv):
    """To the bit, from the prompt and from steps after it."""
    from tersekv.hf.masks import make_mask
    width, own = 1300, 250
    k, v, q = rows(2, 2, width + 3, 64, seed=1), rows(2, 2, width + 3, 64, seed=2), rows(2, 4, width + 3, 64, seed=3)
    mask = torch.ones(2, width + 3, dtype=torch.bool)
    mask[1, :width - own] = False
    together, alone = TerseCache(kv=kv, prefill="decode"), TerseCache(kv=kv, prefill="decode")
    for first, end in [(0, width), (width, width + 1), (width + 1, width + 3)]:
        whole = step(together, *(x[:, :, first:end] for x in (k, v, q)),
                     make_mask(2, end - first, end, first, 0, attention_mask=mask[:, :end]))
        part = slice(max(first, width - own), end)
        single = step(alone, *(x[1:, :, part] for x in (k, v, q)))
        assert torch.equal(whole[1, part.start - first:], single[0])
