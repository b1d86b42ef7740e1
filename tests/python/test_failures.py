# SPDX-License-Identifier: Apache-2.0
"""What fails leaves everything as it was: forward passes, forks, operations of hybrids; and the byte budget."""
import copy

import pytest
import torch

from models import forward, left_padded, make, packed, stock, tokens

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning", "ignore::FutureWarning")


class Failing:
    """A core whose next step fails, before or after the real one."""

    def __init__(self, core, late=False):
        self.core, self.late, self.armed = core, late, True

    def step(self, *arguments, **options):
        if self.armed:
            self.armed = False
            if self.late:
                self.core.step(*arguments, **options)
            raise MemoryError("the KV budget (of this test) is spent")
        self.core.step(*arguments, **options)

    def __getattr__(self, name):
        return getattr(self.core, name)


def arm(cache, layer, late=False):
    core = cache.store.cores[layer]
    cache.store.cores[layer] = Failing(getattr(core, "core", core), late)


def bytes_of(cache):
    stats = cache.stats()
    return [stats["bytes_used"], stats["tokens"], stats["tokens_packed"], stats["slots"],
            [(row["bytes_used"], row["tokens"], row["tokens_packed"]) for row in stats["layers"]]]


# kivi packs pages, f16 is raw, 16 rows of window make statistics shrink the ring, 131 tokens are those that measure
@pytest.mark.parametrize("kv", ["k4v4", "k4v4+win=16", "kivi-k4v4+win=32", "k4v4+mean=page+win=32", "f16"])
@pytest.mark.parametrize("before, n", [(0, 40), (300, 1), (300, 5), (300, 150), (131, 1), (120, 40), (40, 1)])
def test_a_pass_that_fails_in_any_layer_leaves_no_trace(kv, before, n):
    """The next pass then gives the bits that it gives without the failure, and so do the steps behind it."""
    model = make("llama")
    ids = tokens(2, before + n + 3)
    parts = [ids[:, before:before + n], *(ids[:, i:i + 1] for i in range(before + n, before + n + 3))]

    def run(cache):
        return [forward(model, "tersekv", cache, part) for part in parts]

    def fresh():
        cache = packed(model, kv)
        if before:
            forward(model, "tersekv", cache, ids[:, :before])
        else:  # the cores must be there to be armed
            forward(model, "tersekv", cache, ids[:, :1])
            cache.crop(-1)
        return cache

    want = run(fresh())
    for number in range(3):
        for late in (False, True):
            cache = fresh()
            held = bytes_of(cache)
            arm(cache, number, late)
            with pytest.raises(MemoryError, match="of this test") as caught:
                forward(model, "tersekv", cache, parts[0])
            assert f"in layer {number} of the TerseCache" in caught.value.__notes__
            if n > 1:  # the oldest token of the window stays packed: no query to come sees it raw
                assert bytes_of(cache) == held
            assert cache.stats()["tokens"] == held[1] and cache.stats()["slots"] == before
            assert cache.get_seq_length() == before and {layer.length for layer in cache.layers} == {before}
            assert all(torch.equal(a, b) for a, b in zip(run(cache), want))


def test_a_padded_batch_goes_back_too():
    model = make("llama")
    ids, mask = left_padded([30, 12])
    cache = packed(model, "k4v4")
    forward(model, "tersekv", cache, ids[:, :20], mask[:, :20])
    stored = cache.stored.clone()
    arm(cache, 2)
    with pytest.raises(MemoryError):
        forward(model, "tersekv", cache, ids[:, 20:], mask)
    assert torch.equal(cache.stored, stored) and cache.slots == 20
    again = packed(model, "k4v4")
    forward(model, "tersekv", again, ids[:, :20], mask[:, :20])
    assert torch.equal(forward(model, "tersekv", cache, ids[:, 20:], mask),
                       forward(model, "tersekv", again, ids[:, 20:], mask))


def test_a_budget_that_runs_out_midway():
    """Real MemoryErrors, in a layer that depends on the budget, when the next page is due."""
    model = make("llama")
    ids = tokens(1, 700)
    probe = packed(model, "f16")
    forward(model, "tersekv", probe, ids[:, :500])
    probe.store.memory.release_scratch()
    forward(model, "tersekv", probe, ids[:, :1])
    room, failed_in = probe.stats()["bytes_used"] + probe.stats()["bytes_scratch"], set()
    for budget in range(room, room + 90_000, 22_000):
        cache, at = packed(model, "f16", byte_budget=budget), 0
        for at in range(0, 96, 16):
            forward(model, "tersekv", cache, ids[:, at:at + 16])
        with pytest.raises(MemoryError) as caught:
            for at in range(96, 700):
                forward(model, "tersekv", cache, ids[:, at:at + 1])
                stats = cache.stats()
                assert stats["bytes_reserved"] + stats["bytes_scratch"] <= budget
        failed_in.update(caught.value.__notes__)
        assert {layer.length for layer in cache.layers} == {at} and cache.stats()["tokens"] == 3 * at
    assert len(failed_in) == 3


def test_a_first_pass_that_fails_frees_the_batch():
    model = make("llama")
    cache = packed(model, "k4v4", byte_budget=1000)
    with pytest.raises(MemoryError):
        forward(model, "tersekv", cache, tokens(2, 10))
    assert cache.rows == [] and cache.get_seq_length() == 0
    with pytest.raises(MemoryError):
        forward(model, "tersekv", cache, tokens(3, 10))  # not: holds a batch of 2


def test_values_that_are_not_finite_in_a_later_layer():
    model = copy.deepcopy(make("llama"))
    cache = packed(model, "k4v4")
    forward(model, "tersekv", cache, tokens(1, 150))
    held, bias = bytes_of(cache), model.model.layers[2].self_attn.k_proj.weight
    kept = bias[3, 3].item()
    with torch.no_grad():
        bias[3, 3] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        forward(model, "tersekv", cache, tokens(1, 9))
    assert bytes_of(cache) == held
    with torch.no_grad():
        bias[3, 3] = kept
    again = packed(model, "k4v4")
    forward(model, "tersekv", again, tokens(1, 150))
    assert torch.equal(forward(model, "tersekv", cache, tokens(1, 9)), forward(model, "tersekv", again, tokens(1, 9)))


def test_a_hybrid_is_broken_until_reset():
    model = make("lfm2")
    cache = packed(model, "k4v4")
    forward(model, "tersekv", cache, tokens(1, 30))
    arm(cache, 3)
    with pytest.raises(MemoryError):
        forward(model, "tersekv", cache, tokens(1, 1))
    for call in (lambda: forward(model, "tersekv", cache, tokens(1, 1)), lambda: cache.crop(-1),
                 lambda: copy.deepcopy(cache)):
        with pytest.raises(RuntimeError, match="call reset"):
            call()
    cache.reset()
    fresh = packed(model, "k4v4")
    assert torch.equal(forward(model, "tersekv", cache, tokens(1, 30)), forward(model, "tersekv", fresh, tokens(1, 30)))


# -- forks -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("operation", [
    copy.deepcopy,
    lambda cache: cache.batch_repeat_interleave(40),
    lambda cache: cache.batch_select_indices(torch.tensor([1] * 40)),
    lambda cache: cache.reorder_cache(torch.tensor([0, 1] * 20)),
], ids=["deepcopy", "repeat", "select", "reorder"])
def test_a_fork_that_fails_leaves_no_sequence(operation):
    model = make("llama")
    ids = tokens(2, 150)
    probe = packed(model, "k4v4")
    forward(model, "tersekv", probe, ids)
    stats = probe.stats()
    cache = packed(model, "k4v4", byte_budget=stats["bytes_used"] + stats["bytes_scratch"] + 150_000)
    forward(model, "tersekv", cache, ids)
    held, rows = bytes_of(cache), list(cache.rows)
    try:
        operation(cache)
    except MemoryError as caught:
        failure = caught  # its traceback keeps frames alive: nothing may hang on them
    assert "forking sequence" in str(failure)
    assert bytes_of(cache) == held and cache.rows == rows
    fresh = packed(model, "k4v4")
    forward(model, "tersekv", fresh, ids)
    assert torch.equal(forward(model, "tersekv", cache, ids[:, :1]), forward(model, "tersekv", fresh, ids[:, :1]))


# -- hybrids -----------------------------------------------------------------------------------------------------------
def states(cache):
    return [value.clone() for layer in cache._stock() for value in layer.conv_states.values()]


def test_crop_of_a_hybrid_is_all_or_nothing():
    model = make("lfm2")
    ids = tokens(1, 30)
    cache = packed(model)
    forward(model, "tersekv", cache, ids)
    held, convolutions = bytes_of(cache), states(cache)
    with pytest.raises(RuntimeError):  # no past was recorded
        cache.crop(-3)
    assert bytes_of(cache) == held and all(torch.equal(a, b) for a, b in zip(states(cache), convolutions))
    cache._stock()[1].activate_past_recording()  # the first one still refuses; then the second
    for first, second in ((0, 1), (1, 0)):
        cache._stock()[first].record_past, cache._stock()[second].record_past = True, False
        with pytest.raises(RuntimeError):
            cache.crop(-3)
        assert bytes_of(cache) == held and all(torch.equal(a, b) for a, b in zip(states(cache), convolutions))
    with pytest.raises(AttributeError):  # stock convolutions have no such operation
        cache.batch_repeat_interleave(2)
    assert bytes_of(cache) == held and len(cache.rows) == 1


def test_crop_of_a_hybrid_that_records_its_past():
    model = make("lfm2")
    ids = tokens(1, 34)

    def run(attention, cache):
        cache.activate_past_recording()
        forward(model, attention, cache, ids[:, :30])
        cache.crop(0)
        forward(model, attention, cache, tokens(1, 3, 9))
        cache.crop(-3)
        return forward(model, attention, cache, ids[:, 30:])

    assert (run("tersekv", packed(model)) - run("eager", stock(model))).abs().max() < 2e-4


# -- the byte budget ---------------------------------------------------------------------------------------------------
def test_scratch_of_decode_prefill_does_not_grow_with_the_prompt():
    model = make("llama")
    scratch = []
    for batch, n in ((1, 512), (1, 1000), (3, 900)):
        cache = packed(model, "k4v4", prefill="decode")
        forward(model, "tersekv", cache, tokens(batch, n))
        scratch.append(cache.stats()["bytes_scratch"])
    assert max(scratch) < 1.3 * scratch[0]


def test_scratch_counts_under_the_budget():
    model = make("llama")
    cache = packed(model, "k4v4", prefill="decode", byte_budget=2_200_000)
    with pytest.raises(MemoryError, match="scratch of a step of 512 tokens"):
        forward(model, "tersekv", cache, tokens(1, 600))
    assert cache.get_seq_length() == 0
    for first in range(0, 600, 60):  # in smaller pieces it fits, and small steps get room that large ones took
        forward(model, "tersekv", cache, tokens(1, 60, first + 1))
        stats = cache.stats()
        assert stats["bytes_reserved"] + stats["bytes_scratch"] <= 2_200_000
