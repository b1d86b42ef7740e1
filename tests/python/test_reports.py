# SPDX-License-Identifier: Apache-2.0
"""Reports against plain torch, recommendations, and profiles as what caches store with."""
import copy
import math

import pytest
import torch
import transformers

from models import forward, make, packed, stock, tokens
from tersekv import TerseCache, measure_kv_norm_ratio, patch_model, recommend_bits
from tersekv.hf.profiles import fingerprint
from tersekv.reports import collect_profile

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning", "ignore::FutureWarning")


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_oss"])
def test_ratios_are_those_of_the_cached_rows(name):
    model = make(name)
    model.set_attn_implementation("eager")
    ids = tokens(1, 200)
    report = measure_kv_norm_ratio(model, input_ids=ids)
    assert model.config._attn_implementation == "eager"  # as it was
    cache = transformers.DynamicCache()
    forward(model, "eager", cache, ids)
    assert len(report.layers) == len(cache.layers) == model.config.num_hidden_layers
    for layer, ratio in zip(cache.layers, report.ratios):
        want = float((layer.keys.double().square().mean() / layer.values.double().square().mean()).sqrt())
        assert ratio == pytest.approx(want, rel=0.1)  # the core leaves atypical first positions out
    assert report.max_ratio == max(report.ratios) and report.mean_ratio <= report.max_ratio
    lines = str(report).splitlines()
    assert len(lines) == 1 + len(report.layers) + 2 and lines[0].split()[0] == "layer"


def test_recommendations():
    report = measure_kv_norm_ratio(make("llama"), input_ids=tokens(1, 200))
    balanced, quality = (recommend_bits(report, mode) for mode in ("balanced", "quality"))
    assert 2 <= balanced["key_bits"] <= 8 and balanced["reasons"]
    assert quality["key_bits"] + quality["value_bits"] >= balanced["key_bits"] + balanced["value_bits"]
    with pytest.raises(ValueError, match="quality or balanced"):
        recommend_bits(report, "fast")


def biased_model():
    """A model whose values lie far from zero: what a mean has to take off."""
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=199, hidden_size=128, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, attention_bias=True)).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.v_proj.bias.copy_(5 * torch.randn(64))
    return model


def test_a_profile_replaces_measured_statistics(tmp_path):
    model = biased_model()
    ids = tokens(1, 300)
    report = measure_kv_norm_ratio(model, input_ids=tokens(1, 300, seed=9))
    path = tmp_path / "model.tersekv"
    report.save(path)
    reference = forward(model, "eager", stock(model), ids)
    errors = {}
    for name, options in {"profile": dict(profile=str(path)), "object": dict(profile=report.profile),
                          "none": {}}.items():
        kv = "k4v4+mean=profile+sink=0+win=0" if options else "k4v4+mean=off+scale=off+sink=0+win=0"
        cache = packed(model, kv, prefill="decode", **options)
        errors[name] = float((forward(model, "tersekv", cache, ids) - reference).norm() / reference.norm())
    assert errors["profile"] == errors["object"] < errors["none"] / 3


def test_from_pretrained_model():
    model = make("llama")
    model.set_attn_implementation("tersekv")
    cache, report = TerseCache.from_pretrained_model(model, return_report=True, input_ids=tokens(1, 200))
    assert cache.spec.startswith(recommend_bits(report)["spec"]) and cache.store.layer_stats
    assert isinstance(TerseCache.from_pretrained_model(model, input_ids=tokens(1, 200)), TerseCache)
    out = forward(model, "tersekv", cache, tokens(1, 150))
    assert torch.isfinite(out).all() and math.isfinite(report.mean_ratio)


@pytest.mark.parametrize("options, message", [
    (dict(), "tokenizer"),
    (dict(input_ids=torch.zeros(2, 200, dtype=torch.long)), "[1, tokens]"),
    (dict(input_ids=tokens(1, 50)), "at least 96"),
])
def test_wrong_input_is_named(options, message):
    with pytest.raises(ValueError) as caught:
        measure_kv_norm_ratio(make("llama"), **options)
    assert message in str(caught.value)


def test_profiles_of_other_models_are_refused(tmp_path):
    profile = collect_profile(make("gemma3"), input_ids=tokens(1, 200))
    with pytest.raises(ValueError, match="4 attention layers"):
        packed(make("llama"), "k4v4", profile=profile)
    with pytest.raises(LookupError, match="missing"):
        packed(make("llama"), "k4v4", profile=str(tmp_path / "missing"))


def test_bits_of_each_layer_and_whose_profile_it_is(tmp_path):
    """An average laid out over layers by the profile's table; other weights of the same shapes are refused."""
    model = make("llama")
    report = measure_kv_norm_ratio(model, input_ids=tokens(1, 200))
    report.profile.add_budget(4.0, [(6, 4), (4, 3), (5, 8)])
    path = tmp_path / "m.tkvp"
    report.save(path)
    cache = TerseCache.for_model(patch_model(model), profile=path, bits=4)
    cache_of = lambda kv: TerseCache.for_model(model, kv + "+mean=profile", profile=path)
    uniform = [cache_of(kv) for kv in ("k6v4", "k4v3", "k5v8")]
    for each in (cache, *uniform):
        forward(model, "tersekv", each, tokens(1, 700))
    rows = cache.stats()["layers"]
    for layer, other in enumerate(uniform):  # each layer takes what a cache of its widths takes
        assert rows[layer]["bytes_used"] == other.stats()["layers"][layer]["bytes_used"]
    with pytest.raises(LookupError, match="4"):
        TerseCache.for_model(model, profile=path, bits=3)
    with pytest.raises(ValueError, match="profile="):
        TerseCache.for_model(model, bits=4)
    with pytest.raises(ValueError, match="kv and bits"):
        TerseCache.for_model(model, "k4v4", profile=path, bits=4)
    with pytest.raises(ValueError, match="2 layers|byte_budget_table"):
        report.profile.add_budget(5.0, [(4, 4)] * 2)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.model.layers[1].self_attn.k_proj.weight.mul_(1.01)
    with pytest.raises(ValueError, match="the profile is of .*weights:.*measure its own"):
        TerseCache.for_model(other, profile=path)
    assert fingerprint(copy.deepcopy(model)) == fingerprint(model) == report.profile.model_fingerprint


def test_fingerprints_of_parameters_beyond_what_fp32_counts():
    class Large:  # 2^25 values: places in fp32 end one beyond the last
        @staticmethod
        def state_dict():
            return {"weight": torch.ones(1).expand(2**25)}

    assert fingerprint(Large) == fingerprint(Large)
