# SPDX-License-Identifier: Apache-2.0
"""Layers with a sliding window give back what no query can see, and nothing else changes by it."""
import copy
import warnings

import pytest
import torch

from models import SLIDING, WINDOW, forward, generate, left_padded, make, packed, stock, tokens
from tersekv import _core

LOGITS = 2e-4
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning", "ignore::FutureWarning")


@pytest.fixture
def all_kept(monkeypatch):
    """Cores that keep everything, as if no layer had a window."""
    real = _core.LayerCache

    def make_core(*arguments, window=0, rollback=0, **options):
        return real(*arguments, **options)

    def switch(on):
        monkeypatch.setattr(_core, "LayerCache", make_core if on else real)

    return switch


def run(attention, model, cache, ids, mask, chunks):
    """Prefill in chunks, then steps; all logits."""
    found, at = [], 0
    for n in chunks:
        found.append(forward(model, attention, cache, ids[:, at:at + n], mask[:, :at + n]))
        at += n
    return torch.cat(found, 1)


@pytest.mark.parametrize("chunks", [[400] + [1] * 5, [150, 5, 200, 40] + [1] * 5, [7] * 50 + [1] * 5])
@pytest.mark.parametrize("name", SLIDING)
def test_past_the_window_against_the_stock_cache(name, chunks):
    """f32 pages of 64 tokens, a window of 16: pages are given back all along."""
    model = make(name)
    ids, mask = left_padded([405, 250]) if sum(chunks) == 405 else left_padded([sum(chunks), 250])
    cache = packed(model)
    with warnings.catch_warnings():
        if name in ("gemma3n", "gemma4"):  # layers that share keys decode chunks
            warnings.simplefilter("ignore", RuntimeWarning)
        ours = run("tersekv", model, cache, ids, mask, chunks)
    want = run("eager", model, stock(model), ids, mask, chunks)
    assert ((ours - want) * mask[:, :ours.shape[1], None]).abs().max() < LOGITS
    rows = cache.stats()["layers"]
    sliding = [row["bytes_used"] for row, layer in zip(rows, cache._packed()) if layer.is_sliding]
    full = [row["bytes_used"] for row, layer in zip(rows, cache._packed()) if not layer.is_sliding]
    assert sliding and (not full or max(sliding) < 0.75 * min(full))


@pytest.mark.parametrize("kv", ["k4v4", "k4v4+win=16+sink=2", "kivi-k4v4+win=32", "k4tv4t", "fp8", "f16"])
def test_packed_layers_answer_as_if_all_was_kept(kv, all_kept):
    """To the bit, with padding, chunks longer and shorter than the window, and copies."""
    model = make("gemma3")
    ids, mask = left_padded([500, 320])
    chunks = [300, 90, 3, 70] + [1] * 30 + [7]
    found = []
    for on in (False, True):
        all_kept(on)
        cache = packed(model, kv)
        found.append(run("tersekv", model, cache, ids, mask, chunks))
        twin = copy.deepcopy(cache)
        longer = torch.cat([mask, torch.ones(2, 3, dtype=mask.dtype)], 1)[:, :sum(chunks) + 3]
        found.append(forward(model, "tersekv", twin, tokens(2, 3, 9), longer))
    assert torch.equal(found[0], found[2]) and torch.equal(found[1], found[3])


def test_bytes_of_sliding_layers_are_bounded():
    model = make("gemma3")
    cache, used, at = packed(model, "k4v4"), [], 0
    for target in (1500, 3000, 6000):
        while at < target:
            forward(model, "tersekv", cache, tokens(1, 250, at + 1))
            at += 250
        rows = cache.stats()["layers"]
        used.append((rows[0]["bytes_used"], rows[1]["bytes_used"], rows[0]["tokens"]))
    assert cache.layers[0].is_sliding and not cache.layers[1].is_sliding
    core = cache.layers[0].core()
    formula = core.formula_bytes(1500) + 3 * 1500 * 4  # tables of places that are not trimmed yet
    assert max(sliding for sliding, _, _ in used) < formula and used[2][1] > 3 * used[0][1]
    assert used[2][0] < 1.05 * used[0][0] and used[2][2] < 1500  # tables too
    assert cache.get_mask_sizes(1, 0) == (WINDOW, 6000 - WINDOW + 1)
    assert cache.layers[0].keys.shape == (1, 2, WINDOW - 1, 64)
    assert cache.get_seq_length() == 6000


@pytest.mark.parametrize("kv", ["k4v4", "f32"])
def test_crop_past_the_window_leaves_no_trace(kv):
    """Up to 64 tokens; the way on is that of a cache that never had them (full layers that pack see what decision 0004
    says). More is refused and changes nothing."""
    model = make("gemma3")
    ids, draft = tokens(1, 320), tokens(1, 64, 5)
    straight, cropped = packed(model, kv), packed(model, kv)
    for cache in (straight, cropped):
        forward(model, "tersekv", cache, ids[:, :300])
    for n in (1, 5, 63):
        forward(model, "tersekv", cropped, draft[:, :n])
        cropped.crop(-n)
    before = cropped.stats()
    with pytest.raises(RuntimeError, match="crop by 65 tokens: layer 0 keeps 64 tokens beside its window of 16"):
        cropped.crop(-65)
    assert cropped.stats()["tokens"] == before["tokens"] and cropped.get_seq_length() == 300
    for at in range(300, 320):
        logits = [forward(model, "tersekv", cache, ids[:, at:at + 1]) for cache in (straight, cropped)]
        assert kv != "f32" or torch.equal(*logits)
        assert torch.equal(straight.layers[0].keys, cropped.layers[0].keys)
    cropped.crop(-320)
    assert cropped.stats()["tokens"] == 0
    forward(model, "tersekv", cropped, ids)


@pytest.mark.parametrize("name", ["gemma3", "gpt_oss"])
@pytest.mark.parametrize("options", [dict(prompt_lookup_num_tokens=8), dict(num_beams=3), dict()],
                         ids=["lookup", "beams", "greedy"])
def test_generate_far_past_the_window(name, options):
    model = make(name)
    ids = tokens(1, 50).repeat(1, 6)
    want = generate(model, "eager", stock(model), ids, new=40, **options)
    got = generate(model, "tersekv", packed(model), ids, new=40, **options)
    assert torch.equal(want.sequences, got.sequences)


def test_drafts_may_be_longer_when_the_past_is_recorded():
    model = make("gemma3")
    cache = packed(model, "k4v4")
    cache.activate_past_recording()
    forward(model, "tersekv", cache, tokens(1, 500))
    forward(model, "tersekv", cache, tokens(1, 200, 2))
    cache.crop(-200)
    with pytest.raises(RuntimeError, match="keeps 256"):
        cache.crop(-257)
