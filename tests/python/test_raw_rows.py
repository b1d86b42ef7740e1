# SPDX-License-Identifier: Apache-2.0
"""Which tokens a query on a device sees raw and which packed, over a stand-in whose pages round coarsely (mock_device.py):
against one plain softmax over a mixture of both, token by token, in float64."""
import copy

import mock_device
import numpy as np
import pytest
import torch
from tersekv import TerseCache

D, HEADS, KV = 64, 4, 2


class Coarse(mock_device.DeviceLayer):
    """Pages keep multiples of 1/2."""

    def append(self, k, v, slots, tokens, flag, stream):
        both = [np.ascontiguousarray(np.round(mock_device.rows(x, 1, self.heads, tokens, self.d) * 2) / 2) for x in (k, v)]
        step = 4 * self.d
        self.kept = both
        super().append(*((x.ctypes.data, 0, 0, tokens * step, step) for x in both), slots, tokens, flag, stream)


@pytest.fixture(autouse=True)
def coarse(monkeypatch):
    mock_device.install(monkeypatch)
    from tersekv import _core
    monkeypatch.setattr(_core, "DeviceLayer", Coarse)


class Layer:
    """One layer of a cache, and what it should hold."""

    def __init__(self, spec, batch, prefill="raw", sink=4, win=128, window=None):
        self.cache, self.sink, self.win, self.window, self.prefill = TerseCache(kv=spec, prefill=prefill), sink, win, window, prefill
        self.k, self.v = (torch.zeros(batch, KV, 0, D) for _ in "kv")
        self.seed = 0

    def step(self, n):
        """Appends n tokens and attends; largest difference from the reference."""
        batch, before = self.k.shape[0], self.k.shape[2]
        generator = torch.Generator().manual_seed(before + 1000 * self.seed)
        k, v = (torch.randn(batch, KV, n, D, generator=generator) for _ in "kv")
        q = torch.randn(batch, HEADS, n, D, generator=generator) * 2
        self.k, self.v = torch.cat([self.k, k], 2), torch.cat([self.v, v], 2)
        handle, _ = self.cache.update(k, v, 0)
        out = self.cache.layers[0].attend(handle.pending, q, None, config=None, scale=D ** -0.5, causal=True,
                                          window=self.window, softcap=None, sinks=None)
        return float((out.double().transpose(1, 2) - self.want(q.double(), before)).abs().max())

    def want(self, q, before):
        n = q.shape[2]
        at, key = before + torch.arange(n)[:, None], torch.arange(before + n)[None]
        raw = (key < self.sink) | (key > at - self.win)
        if self.prefill == "raw" and (before == 0 or n > 16):  # its own tokens, and what was raw before it
            raw = ((key < self.sink) | (key >= before - self.win)).expand(n, -1)
        seen = (key <= at) if self.window is None else (key <= at) & (key > at - self.window)
        group = HEADS // KV
        k, v = (x.double().repeat_interleave(group, 1) for x in (self.k, self.v))
        packed_k, packed_v = ((x * 2).round() / 2 for x in (k, v))
        scores = torch.where(raw, q @ k.transpose(2, 3), q @ packed_k.transpose(2, 3)) * D ** -0.5
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        return (weights * raw) @ v + (weights * ~raw) @ packed_v

    def crop(self, n):
        self.cache.crop(-n)
        self.k, self.v = self.k[:, :, :-n], self.v[:, :, :-n]
        self.seed += 1


SHAPES = {"": (4, 128), "+sink=2+win=33": (2, 33), "+sink=0+win=8": (0, 8), "+sink=5+win=0": (5, 0), "+sink=0+win=0": (0, 0)}


@pytest.mark.parametrize("options", SHAPES)
@pytest.mark.parametrize("prefill", ["raw", "decode"])
@pytest.mark.parametrize("window", [None, 20, 150])
def test_every_query_sees_the_right_mixture(options, prefill, window):
    sink, win = SHAPES[options]
    for sizes in ((300, 1, 5, 16, 50, 1, 200, 1), (10, *[1] * 150, 16, 1)):
        layer = Layer("k8v8+mean=off+scale=off" + options, 2, prefill, sink, win, window)
        for size in sizes:
            if size == sizes[0] and prefill == "decode" and size > 16:
                continue  # a first chunk is tested below
            assert layer.step(size) < 2e-5, (sizes, size, layer.k.shape[2])


def test_a_first_chunk_with_decode_semantics():
    layer = Layer("k8v8+mean=off+scale=off+win=33+sink=2", 2, "decode", 2, 33)
    assert layer.step(90) < 2e-5 and layer.step(1) < 2e-5


def test_after_a_crop():
    layer = Layer("k8v8+mean=off+scale=off", 1)
    layer.step(300), layer.step(9)
    for n in (9, 20, 3):  # as far back as the ring has rows
        layer.crop(n)
        assert layer.step(n) < 2e-5
    layer.crop(60)  # further: tokens that had left the ring are seen as they are packed
    places = layer.cache.store.pages.places
    assert layer.step(1) > 1e-3
    layer.k[:, :, 309 - 60 - 128:309 - 156], layer.v[:, :, 309 - 60 - 128:309 - 156] = (
        (x[:, :, 309 - 60 - 128:309 - 156] * 2).round() / 2 for x in (layer.k, layer.v))
    assert layer.step(1) < 2e-5 and min(places.low.values()) <= 309 - 60 - 128 + 2


def test_copies_beams_and_rows_that_move():
    layer = Layer("k8v8+mean=off+scale=off", 3)
    layer.step(200)
    twin = copy.copy(layer)
    twin.cache, twin.seed = copy.deepcopy(layer.cache), 7
    assert layer.step(30) < 2e-5 and twin.step(5) < 2e-5 and twin.step(1) < 2e-5 and layer.step(1) < 2e-5
    for order in ([2, 0, 0], [1, 1, 2], [2, 1, 0]):
        layer.cache.reorder_cache(torch.tensor(order))
        layer.k, layer.v = layer.k[order], layer.v[order]
        assert layer.step(1) < 2e-5 and layer.step(4) < 2e-5
    twin.cache.batch_select_indices(torch.tensor([1]))
    twin.k, twin.v = twin.k[1:2], twin.v[1:2]
    assert twin.step(1) < 2e-5
    places = layer.cache.store.pages.places
    assert sorted(places.place) == sorted(layer.cache.rows + twin.cache.rows) == sorted(places.low)
    assert len(set(places.place.values())) == 4 and places.capacity <= 9


def test_what_reads_back_is_what_is_seen():
    layer = Layer("k8v8+mean=off+scale=off", 2)
    layer.step(300)
    inner = layer.cache.layers[0]
    for got, x in ((inner.keys, layer.k), (inner.values, layer.v)):
        key = torch.arange(300)[None]
        raw = ((key < 4) | (key >= 300 - 128))[0][:, None]
        assert torch.equal(got, torch.where(raw, x, (x * 2).round() / 2))


@pytest.mark.parametrize("sizes", [(20, *[1] * 130), (40, 16, 100)])
def test_statistics_wait_for_the_window(sizes):
    """Nothing is packed before the first token leaves the raw window; what is there then gives means and scales."""
    layer = Layer("k8v8", 2)
    statistics = None
    for size in sizes:
        assert layer.step(size) < 2e-5
        core = layer.cache.store.cores[0]
        statistics = statistics or core.statistics
        assert statistics.wanted == (layer.k.shape[2] <= 132)
    first = 133 if sizes[0] == 20 else 156
    mean = layer.k[:, :, 4:first].double().mean((0, 2))
    assert statistics.source == f"{2 * (first - 4)} of the first {2 * (first - 4)} tokens of the batch"
    assert torch.allclose(statistics.kept[0].double(), mean, atol=1e-6)


def test_statistics_of_a_long_chunk_are_spread_over_it(monkeypatch):
    from tersekv.hf import statistics as module
    monkeypatch.setattr(module, "MOST_TOKENS", 100)
    layer = Layer("k8v8+sink=0+win=0", 2, sink=0, win=0)
    layer.step(140)
    statistics = layer.cache.store.cores[0].statistics
    assert statistics.source == "94 of the first 280 tokens of the batch"
    want = layer.k[:, :, ::3].double().mean((0, 2))
    assert torch.allclose(statistics.kept[0].double(), want, atol=1e-6)


def test_bytes_are_those_of_pages_and_rows():
    layer = Layer("k8v8+mean=off+scale=off", 2)
    layer.step(300)
    stats = layer.cache.stats()
    core = layer.cache.store.cores[0]
    rows = 2 * 160 * 2 * KV * D * 4  # fp32 here
    assert stats["bytes_used"] == 2 * 5 * core.page_bytes + rows
    assert stats["bytes_reserved"] == core.memory.numel() + rows + 2 * KV * D * 4
    assert stats["tokens_packed"] == 2 * (300 - 132)
