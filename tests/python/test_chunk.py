# SPDX-License-Identifier: Apache-2.0
"""Chunks behind a history on a device: joined by lse from tiles of constant scratch, over the stand-in for the kernels
(mock_device.py), whose pages hold fp32: the answers must be those of DynamicCache."""
import mock_device
import pytest
import torch
from models import make, stock, tokens
from tersekv import TerseCache
from tersekv.hf import chunk, parts
from tersekv.hf.handle import Pending


@pytest.fixture
def mock(monkeypatch):
    """And whoever decodes a whole history fails."""
    mock_device.install(monkeypatch)
    dense = Pending.dense
    monkeypatch.setattr(Pending, "dense", lambda self, side: dense(self, side) if self.start == 0 else pytest.fail(
        "a history was decoded as a whole"))


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(chunk, "SCRATCH_BYTES", 1)
    made, tile_of = [], chunk.Tile

    def make_tile(*arguments):
        made.append(tile_of(*arguments))
        return made[-1]

    monkeypatch.setattr(chunk, "Tile", make_tile)
    yield made


@torch.no_grad()
def run(model, attention, cache, ids, sizes, mask=None):
    """Logits of all slots, chunk by chunk."""
    model.set_attn_implementation(attention)
    outs, at = [], 0
    for size in sizes:
        given = {} if mask is None else {"attention_mask": mask[:, :at + size],
                                         "position_ids": (mask.cumsum(1) - 1).clamp_min(0)[:, at:at + size]}
        outs.append(model(input_ids=ids[:, at:at + size], past_key_values=cache, **given).logits)
        at += size
    return torch.cat(outs, dim=1)


PACKED = "k8v8+sink=0+win=0"


def compare(name, batch, sizes, mask=None, spec=PACKED, **options):
    model, ids = make(name), tokens(batch, sum(sizes))
    want = run(model, "eager", stock(model), ids, sizes, mask)
    cache = TerseCache(model.config, spec, **options)
    got = run(model, "tersekv", cache, ids, sizes, mask)
    seen = torch.ones(batch, sum(sizes), dtype=torch.bool) if mask is None else mask.bool()
    assert ((want - got)[seen].abs().max() / want[seen].abs().max()).item() < 2e-5
    return cache


@pytest.mark.parametrize("name", ["llama", "llama_mha_bias", "mistral", "gemma2", "gpt_oss"])  # window, softcap, sinks
@pytest.mark.parametrize("sizes", [(200, 40, 1, 17), (30, 100, 100), (5, 150)])
def test_answers_are_those_of_dynamic_cache(mock, small_tiles, name, sizes):
    cache = compare(name, 2, sizes)
    assert cache.stats()["decodes_because_of"] == []
    assert small_tiles and all(
        tile.tokens <= chunk.LEAST_TILE and tile.memory.numel() == 4 * tile.core.kv_heads * tile.tokens * tile.core.d
        for tile in small_tiles)


@pytest.mark.parametrize("spec", ["k8v8", "k8v8+sink=3+win=9", "k8v8+sink=4+win=0", "k8v8+sink=0+win=70"])
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
@pytest.mark.parametrize("prefill", ["raw", "decode"])
def test_raw_rows_are_seen_once(mock, small_tiles, spec, name, prefill):
    for sizes in ((200, 40, 1, 17, 1), (20, 5, 16, 1, 140), (3, *[1] * 200)):
        cache = compare(name, 2, sizes, spec=spec, prefill=prefill)
        assert cache.stats()["decodes_because_of"] == []


@pytest.mark.parametrize("spec", [PACKED, "k8v8", "k8v8+sink=2+win=20"])
@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_padding(mock, small_tiles, side, spec):
    mask = torch.ones(3, 200, dtype=torch.int64)
    if side != "right":
        mask[0, :31], mask[2, :130] = 0, 0  # the last row begins in the second chunk
    if side != "left":
        mask[1, 180:] = 0
    compare("llama", 3, (100, 100), mask, spec)
    if side == "right":
        mask = torch.nn.functional.pad(mask[:, 90:], (10, 0), value=1)  # and in a chunk that a kernel would take
        mask[1, -5:] = 0
        compare("llama", 3, (110, 10), mask, spec)


def test_decode_semantics_go_in_blocks(mock, small_tiles):
    compare("llama", 2, (100, 40), prefill="decode")
    assert not small_tiles


@pytest.mark.parametrize("spec", [PACKED, "k8v8", "k8v8+sink=2+win=20"])
@pytest.mark.parametrize("prefill", ["raw", "decode"])
def test_no_kernel_is_named_and_goes_by_tiles(mock, small_tiles, monkeypatch, prefill, spec):
    def describe(self, *_):
        raise ValueError("none for k8v8 at head_dim 64")

    monkeypatch.setattr(mock_device.DeviceLayer, "describe", describe)
    with pytest.warns(RuntimeWarning, match="a tile at a time because of no CUDA kernel .none for k8v8"):
        cache = compare("llama", 2, (150, 1, 9, 40, 1), spec=spec, prefill=prefill)
    assert len(cache.stats()["decodes_because_of"]) == 1


@pytest.mark.parametrize("causal, window, softcap", [(True, None, None), (False, None, None), (True, 9, None),
                                                     (False, None, 3.0), (True, 9, 3.0)])
def test_parts_join_to_one_softmax(monkeypatch, causal, window, softcap):
    monkeypatch.setattr(parts, "SCORE_BYTES", 1 << 14)  # some queries at a time
    n, keys, cut = 50, 50 if causal else 80, 20
    q, k, v = torch.randn(2, 6, n, 64), torch.randn(2, 3, keys, 64), torch.randn(2, 3, keys, 64)
    at, sinks = torch.arange(keys)[None], torch.randn(6)
    seen = (at <= torch.arange(n)[:, None]) if causal else torch.ones(n, keys, dtype=torch.bool)
    if window:
        seen = seen & (at > torch.arange(n)[:, None] - window)
    scores = (q.double().view(2, 3, 2, n, 64) @ k.double()[:, :, None].transpose(-1, -2)).view(2, 6, n, keys) / 8
    scores = scores if softcap is None else torch.tanh(scores / softcap) * softcap
    scores = torch.cat([scores.masked_fill(~seen, float("-inf")), sinks.double().view(1, 6, 1, 1).expand(2, 6, n, 1)], -1)
    want = (scores.softmax(-1)[..., :-1].view(2, 3, 2, n, keys) @ v.double()[:, :, None]).view(2, 6, n, 64)
    mask = seen if window else None
    if causal:  # the whole at once, and empty parts
        joined = parts.Joined()
        joined.add(torch.zeros_like(q), torch.full((2, 6, n), float("-inf")))
        joined.add(*parts.part(q, k, v, scale=1 / 8, causal=True, mask=mask, softcap=softcap))
        joined.add(torch.zeros_like(q), torch.full((2, 6, n), float("-inf")))
    else:
        joined = parts.Joined()
        joined.add(*parts.part(q, k[:, :, :cut], v[:, :, :cut], scale=1 / 8, softcap=softcap))
        joined.add(*parts.part(q, k[:, :, cut:], v[:, :, cut:], scale=1 / 8, softcap=softcap))
    assert torch.allclose(joined.done(q.dtype, sinks).double(), want, atol=2e-6)
