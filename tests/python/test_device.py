# SPDX-License-Identifier: Apache-2.0
"""Pages, slots, tables and forks of a CUDA cache, over a stand-in for the kernels (mock_device.py): fp32 values, so the
answers must be those of DynamicCache."""
import copy

import mock_device
import pytest
import torch
from models import MODELS
from transformers import DynamicCache

from tersekv import Codec, TerseCache, _core, patch_model


@pytest.fixture(autouse=True)
def mock(monkeypatch):
    mock_device.install(monkeypatch)


def make(name):
    torch.manual_seed(0)
    return MODELS[name]().eval()


def ids_of(batch, n, seed=1):
    return torch.randint(3, 199, (batch, n), generator=torch.Generator().manual_seed(seed))


def both(name, batch=2, prompt=70, steps=80, mask=None, chunks=()):
    """Largest difference of logits, relative, token by token after a prompt and chunks."""
    model, ids, outs = make(name), ids_of(batch, prompt + sum(chunks) + steps), []
    for terse in (False, True):
        if terse:
            patch_model(model)
        cache = TerseCache.for_model(model, kv="k8v8") if terse else DynamicCache(config=model.config)
        at, logits = 0, []
        with torch.no_grad():
            for size in (prompt, *chunks, *[1] * steps):
                given = {} if mask is None else {"attention_mask": mask[:, :at + size], "position_ids": (
                    mask.cumsum(1) - 1).clamp_min(0)[:, at:at + size]}
                out = model(input_ids=ids[:, at:at + size], past_key_values=cache, **given).logits
                at += size
                logits.append(out[:, -1] if at <= prompt else out)
        outs.append(torch.cat([x.reshape(batch, -1) for x in logits], dim=1))
    assert not cache.explained, cache.explained
    want, got = outs
    return ((want - got).abs().max() / want.abs().max()).item(), cache


@pytest.mark.parametrize("name", ["llama", "qwen2", "mistral"])
def test_steps_are_those_of_dynamic_cache(name):
    worst, cache = both(name)
    assert worst < 1e-5
    assert cache.stats()["tokens"] == 2 * 150 * 3
    assert cache.store.pages.count < 2 * 3 + 3  # a page of 64 tokens more than it takes, at most a row


@pytest.mark.parametrize("chunks", [(5, 16, 1), (17,), (100, 40)])
def test_chunks_of_any_length(chunks):
    assert both("llama", batch=2, chunks=chunks, steps=3)[0] < 1e-5


def test_left_padding():
    mask = torch.ones(3, 120, dtype=torch.int64)
    mask[0, :31], mask[2, :69] = 0, 0
    worst, cache = both("llama", batch=3, prompt=70, steps=50, mask=mask)
    assert worst < 1e-5
    assert sorted(cache.store.pages.lengths.values()) == [51, 89, 120]


def test_generate_with_beams_padding_and_drafts():
    model, ids = make("llama"), ids_of(2, 30)
    mask = torch.ones_like(ids)
    mask[1, :7] = 0
    for more in (dict(num_beams=3), dict(num_beams=2, num_return_sequences=2)):
        options = dict(max_new_tokens=70, do_sample=False, pad_token_id=0, attention_mask=mask, **more)
        model.set_attn_implementation("sdpa")
        want = model.generate(ids, past_key_values=DynamicCache(config=model.config), **options)
        patch_model(model)
        cache = TerseCache.for_model(model, kv="k8v8")
        assert torch.equal(want, model.generate(ids, past_key_values=cache, **options))
        pages = cache.store.pages
        held = [page for ids in pages.ids.values() for page in ids]
        assert sorted(set(held) | set(pages.free)) == list(range(pages.count))  # none is lost
        assert all(pages.refs[page] == held.count(page) for page in set(held))
    options = dict(max_new_tokens=40, do_sample=False, pad_token_id=0, attention_mask=mask[:1], prompt_lookup_num_tokens=4)
    got = model.generate(ids[:1], past_key_values=TerseCache.for_model(model, kv="k8v8"), **options)
    model.set_attn_implementation("sdpa")
    assert torch.equal(got, model.generate(ids[:1], past_key_values=DynamicCache(config=model.config), **options))


def test_copies_share_pages_until_one_writes():
    model, ids = patch_model(make("llama")), ids_of(1, 100)
    with torch.no_grad():
        cache = TerseCache.for_model(model, kv="k8v8")
        model(input_ids=ids, past_key_values=cache)
        twin = copy.deepcopy(cache)
        pages = cache.store.pages
        assert pages.pages_used() == 2
        one, other = ids_of(1, 5, 2), ids_of(1, 5, 3)
        model(input_ids=other, past_key_values=twin)
        first = model(input_ids=one, past_key_values=cache).logits
        assert pages.pages_used() == 3  # the full page is still common
        alone = TerseCache.for_model(model, kv="k8v8")
        model(input_ids=ids, past_key_values=alone)
        assert torch.allclose(first, model(input_ids=one, past_key_values=alone).logits, atol=1e-5)
        cache.crop(-50)
        assert pages.lengths[cache.rows[0]] == cache.get_seq_length() == 55
        del twin


class Replayed:
    """Stands for a CUDA graph: replay() runs again, over the same buffers, what was captured."""

    def replay(self):
        made = self.made
        layers = [(layer, layer.length) for layer in made.cache._packed()]
        kept = made.cache.slots, made.cache.stored
        made.pages.static = made.step_of_graph
        made.step_of_graph.forget()  # what is made of lengths, and the plan, are part of the graph
        made.logits = made._forward()
        made.pages.static = None
        for layer, length in layers:
            layer.length, layer.pending = length, None
        made.cache.slots, made.cache.stored = kept
        made.cache.undo.starts.clear()


@pytest.mark.parametrize("padded", [False, True])
def test_graph_steps_are_plain_steps(monkeypatch, padded):
    import contextlib

    from tersekv import DecodeGraph
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Replayed)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph: contextlib.nullcontext())
    model, ids = patch_model(make("llama")), ids_of(3, 200)
    mask = torch.ones_like(ids)
    mask[1, :30 * padded] = 0
    position = (mask.cumsum(1) - 1).clamp_min(0)

    def run(cache, low, high):
        return model(input_ids=ids[:, low:high], past_key_values=cache, attention_mask=mask[:, :high],
                     position_ids=position[:, low:high]).logits[:, -1]

    with torch.no_grad():
        plain, cache = (TerseCache.for_model(model, kv="k8v8") for _ in "ab")
        with pytest.raises(ValueError, match="prompt"):
            DecodeGraph(model, cache)
        run(plain, 0, 100), run(cache, 0, 100)
        want = [run(plain, at, at + 1) for at in range(100, 180)]
        graph = DecodeGraph(model, cache, max_new_tokens=80)
        graph.graph.made, graph._sent = graph, None  # the stand-in has run what it captured
        for at in range(100, 180):
            got = run(cache, at, at + 1) if at in (130, 131, 170) else graph.step(ids[:, at])
            assert torch.allclose(got, want[at - 100], atol=1e-5), at
        assert cache.get_seq_length() == 180
        assert torch.allclose(run(plain, 180, 190), run(cache, 180, 190), atol=1e-5)
        with pytest.raises(RuntimeError, match="max_new_tokens"):
            for at in range(100):
                graph.step(ids[:, 0])
        graph.close()
        with pytest.raises(ValueError, match="tersekv"):
            model.set_attn_implementation("sdpa")
            DecodeGraph(model, cache)


def test_other_attention_reads_pages_back():
    model, ids = make("llama"), ids_of(2, 90)
    with torch.no_grad():
        want = model(input_ids=ids).logits[:, -1]
        with pytest.warns(RuntimeWarning, match="attention"):
            cache = TerseCache.for_model(model, kv="k8v8")
            model(input_ids=ids[:, :80], past_key_values=cache)
            got = model(input_ids=ids[:, 80:], past_key_values=cache).logits[:, -1]
    assert torch.allclose(want, got, atol=1e-4)
    assert cache.stats()["decodes_because_of"] == ["attention 'sdpa'"]


def test_a_failed_pass_is_taken_back(monkeypatch):
    model, ids = patch_model(make("llama")), ids_of(2, 80)
    with torch.no_grad():
        cache, same = (TerseCache.for_model(model, kv="k8v8") for _ in "ab")
        for c in (cache, same):
            model(input_ids=ids[:, :70], past_key_values=c)
        broken = model.model.layers[2].mlp.forward
        model.model.layers[2].mlp.forward = lambda *_: (_ for _ in ()).throw(RuntimeError("broken"))
        update = type(cache.layers[2])._update
        monkeypatch.setattr(type(cache.layers[2]), "_update", lambda self, *a: (_ for _ in ()).throw(
            RuntimeError("broken")) if self.index == 2 else update(self, *a))
        with pytest.raises(RuntimeError, match="broken"):
            model(input_ids=ids[:, 70:], past_key_values=cache)
        monkeypatch.setattr(type(cache.layers[2]), "_update", update)
        model.model.layers[2].mlp.forward = broken
        assert cache.get_seq_length() == 70
        a, b = (model(input_ids=ids[:, 70:], past_key_values=c).logits for c in (cache, same))
    assert torch.equal(a, b)


@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_bits_of_pages_and_records_are_one_to_one(monkeypatch, bits, d):
    monkeypatch.undo()  # the true formats
    native = _core.DeviceLayer(f"k{bits}v{bits}+sink=0+win=0", d, 1, 0)
    for side in "kv":
        places = native.bit_places(side)
        assert sorted(places) == list(range(16 * d * bits))
    stored = _core.device_stored_codes(bits)
    assert len(set(stored)) == 1 << bits
    with pytest.raises(ValueError, match="7"):
        _core.device_stored_codes(7)


@pytest.mark.parametrize("spec,d,head", [("k4v8", 128, 0), ("k2v3", 64, 2), ("k5v6", 256, 1)])
def test_records_survive_the_way_through_pages(monkeypatch, spec, d, head):
    monkeypatch.undo()  # the true formats
    from tersekv import ops_cuda
    monkeypatch.setattr(ops_cuda, "_stream", lambda device: 0)
    for side in "kv":
        of = ops_cuda.DeviceRows(spec, side, d, 0, head, (), (), torch.device("cpu"))
        codec, x = Codec(d, spec=spec), torch.randn(100, d)
        packed, scales = getattr(codec, f"compress_{side}")(x)
        kept = {}

        class Native:  # the kernels' part: what was written is what is read
            page_tokens, page_bytes = of.native.page_tokens, of.native.page_bytes
            set_pages = lambda self, address: kept.update(address=address)
            decompress = lambda self, *_: kept.update(
                bytes=mock_device.at(kept["address"], "uint8", 2 * self.page_bytes).copy())
            append = lambda self, *_: mock_device.at(kept["address"], "uint8", 2 * self.page_bytes).__setitem__(
                slice(None), kept["bytes"])

        of.native = Native()
        ops_cuda.decompress(of, packed, scales, torch.float32)
        got = ops_cuda.compress(of, x)
        assert torch.equal(got[0], packed) and torch.equal(got[1], scales) and kept["bytes"].any()


def test_refusals():
    model = patch_model(make("llama"))
    with pytest.raises(ValueError, match="byte_budget"):
        model(input_ids=ids_of(1, 20), past_key_values=TerseCache.for_model(model, kv="k8v8", byte_budget=1 << 20))
    folded = patch_model(make("llama"))
    cache = TerseCache.for_model(folded, kv="k8v8+mean=off+scale=off", fold_output_rotation=True)
    with pytest.raises(ValueError, match="fold_output_rotation is for CPU caches"):
        folded(input_ids=ids_of(1, 20), past_key_values=cache)
    with pytest.raises(ValueError, match="CUDA"):
        Codec(64, 4, device="cuda")


def test_small_layers_share_a_tensor(monkeypatch):
    from tersekv.hf import pages as pages_module
    model, ids = patch_model(make("llama")), ids_of(2, 200)
    with torch.no_grad():
        cache = TerseCache.for_model(model, kv="k8v8")
        for low, high, tensors in ((0, 70, 1), (70, 140, 1), (140, 200, 3)):
            if tensors == 3:
                monkeypatch.setattr(pages_module, "TOGETHER", 0)
            model(input_ids=ids[:, low:high], past_key_values=cache)
            cores = cache.store.pages.cores
            assert len({core.memory.untyped_storage().data_ptr() for core in cores}) == tensors
            assert all(core.memory.data_ptr() % 16 == 0 for core in cores)
            held = {core.memory.untyped_storage().data_ptr(): core.memory.untyped_storage().nbytes() for core in cores}
            assert sum(held.values()) <= sum(core.memory.numel() for core in cores) + 3 * 256
