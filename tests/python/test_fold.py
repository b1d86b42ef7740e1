# SPDX-License-Identifier: Apache-2.0
"""fold_output_rotation: the same model with rotated values, caches that rely on it, the way back, and refusals."""
import copy

import pytest
import torch
import transformers
from transformers import DynamicCache

import tersekv
from models import COMMON, MODELS, forward, left_padded, make, packed, stock, tokens
from tersekv import TerseCache, _core, fold_output_rotation
from tersekv.hf import fold
from tersekv.hf.layer import describe

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
PHI3 = dict(**COMMON, pad_token_id=0)  # q, k and v in one projection


def fresh(name, dtype=torch.float32):
    """A model of this test alone: its weights change."""
    if name == "phi3":
        torch.manual_seed(3)
        return transformers.Phi3ForCausalLM(transformers.Phi3Config(**PHI3)).to(dtype).eval()
    return copy.deepcopy(make(name)).to(dtype)


def weights(model):
    return {name: weight.clone() for name, weight in model.state_dict().items()}


def exact(model, ids):
    with torch.no_grad():
        model.set_attn_implementation("eager")
        return model(input_ids=ids, past_key_values=DynamicCache(config=model.config)).logits


@pytest.mark.parametrize("name", ["llama", "llama_mha_bias", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "gpt_oss",
                                  "lfm2", "gemma3n", "phi3"])
def test_a_folded_model_is_the_same_model(name):
    """GQA, biases, windows, softcap, sinks, out_proj, shared keys and values, one projection of all three."""
    model, ids = fresh(name), tokens(2, 40)
    before, kept = exact(model, ids), weights(model)
    folded = fold_output_rotation(model, keep_originals=True)
    assert any(not torch.equal(kept[key], weight) for key, weight in model.state_dict().items())
    scale = float(before.abs().max())
    assert float((exact(model, ids) - before).abs().max()) < 2e-4 * scale
    forwarded = forward(model, "tersekv", packed(model, "f32"), ids)
    assert float((forwarded - before).abs().max()) < 2e-4 * scale
    folded.unfold()
    assert all(torch.equal(kept[key], weight) for key, weight in model.state_dict().items())
    assert torch.equal(exact(model, ids), before)


@pytest.mark.parametrize("name", ["llama", "llama_mha_bias", "gemma2", "gpt_oss", "gemma3n"])
@pytest.mark.parametrize("kv", ["k8v8+win=16+sink=2", "k4v4+win=16", "k6v6+rot=haar+win=0+sink=0"])
def test_caches_of_a_folded_model_are_as_good(name, kv):
    """Of the same bytes; decoding sees packed values, the raw window and sinks."""
    model, (ids, mask) = fresh(name), left_padded((300, 270))

    def error(**options):
        cache = TerseCache.for_model(model, kv, prefill="decode", **options)
        got = forward(model, "tersekv", cache, ids, mask)[:, -40:]
        return float((got - want).square().mean().sqrt()), cache.stats()["bytes_used"]

    want = forward(model, "eager", stock(model), ids, mask)[:, -40:]
    plain, plain_bytes = error()
    turned, turned_bytes = error(fold_output_rotation=True)
    assert fold.of(model.config) is not None
    assert turned < 1.6 * plain + 1e-4 and turned_bytes == plain_bytes
    unaware, _ = error()  # rotates once more: right, only slower
    assert unaware < 1.6 * plain + 1e-4
    fold.of(model.config).unfold()


@pytest.mark.parametrize("kv, limit", [("k8v8+win=8+sink=2", 4e-3), ("k4v4+win=8", 0.08)])
def test_the_core_leaves_values_and_outputs_rotated(kv, limit):
    """Against attention in double precision over the rotated values."""
    generator = torch.Generator().manual_seed(5)
    heads, kv_heads, d, n = 4, 2, 64, 200
    k, v, q = (torch.randn(1, h, n, d, generator=generator) for h in (kv_heads, kv_heads, heads))
    v = (v.double() * torch.rand(d, generator=generator).double().exp() @ fold.rotation(d).T).float()
    core = _core.LayerCache(_core.Memory(0), kv, heads, kv_heads, d, d, 0, "decode", "exact", values_rotated=True)
    out = torch.empty(1, heads, n, d)
    core.step([(0, 0, n, 0)], n, describe(k), describe(v), describe(q), describe(out), d ** -0.5)
    groups = [x.double().repeat_interleave(heads // kv_heads, dim=1) for x in (k, v)]
    scores = q.double() @ groups[0].transpose(-1, -2) * d ** -0.5
    scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), float("-inf"))
    want = scores.softmax(-1) @ groups[1]
    error = float((out.double() - want).square().mean().sqrt() / want.square().mean().sqrt())
    assert error < limit
    read = torch.empty(1, kv_heads, n, d)
    core.read("v", [0], 0, n, describe(read))
    assert float((read - v).square().mean().sqrt() / v.square().mean().sqrt()) < limit * 2
    assert torch.equal(read[:, :, -8:], v[:, :, -8:].half().float())


@pytest.mark.parametrize("d", [32, 64, 80, 96, 128, 256])
def test_rotations_are_orthogonal(d):
    matrix = fold.rotation(d)
    assert float((matrix @ matrix.T - torch.eye(d, dtype=torch.float64)).abs().max()) < 1e-12
    assert torch.equal(matrix, fold.rotation(d))


@pytest.mark.parametrize("dtype, limit", [(torch.float32, 1e-6), (torch.bfloat16, 0.02)])
def test_unfold_without_originals_is_off_by_rounding(dtype, limit):
    model = fresh("llama", dtype)
    kept = weights(model)
    fold_output_rotation(model).unfold()
    for key, weight in model.state_dict().items():
        assert float((weight.float() - kept[key].float()).abs().max()) <= limit * float(kept[key].float().abs().max())
    assert fold.of(model.config) is None
    fold_output_rotation(model).unfold()  # and again


def test_tied_projections_are_turned_once():
    model = fresh("llama")
    first, *others = (layer.self_attn for layer in model.model.layers)
    for other in others:
        other.o_proj.weight, other.v_proj.weight = first.o_proj.weight, first.v_proj.weight
    ids = tokens(1, 30)
    before = exact(model, ids)
    fold_output_rotation(model)
    assert first.o_proj.weight is others[0].o_proj.weight
    assert float((exact(model, ids) - before).abs().max()) < 2e-4 * float(before.abs().max())


@pytest.mark.parametrize("other", ["q_proj", "k_proj"])
def test_values_tied_to_other_projections_are_refused(other):
    model = fresh("llama_mha_bias")
    attention = model.model.layers[1].self_attn
    getattr(attention, other).weight = attention.v_proj.weight
    kept = weights(model)
    with pytest.raises(ValueError, match=f"layers.1.self_attn.{other}.weight shares weights"):
        fold_output_rotation(model)
    assert all(torch.equal(kept[key], weight) for key, weight in model.state_dict().items())


def test_one_matrix_for_values_and_outputs_is_refused():
    model = fresh("llama_mha_bias")
    attention = model.model.layers[0].self_attn
    attention.o_proj.weight = torch.nn.Parameter(torch.randn(512, 512) * 0.01)
    attention.v_proj = torch.nn.Linear(512, 512, bias=False)
    attention.v_proj.weight = attention.o_proj.weight
    with pytest.raises(ValueError, match="shares its weights with another projection"):
        fold_output_rotation(model)


class Linear8bit(torch.nn.Linear):
    """As quantisers replace linear layers."""


def quantised(model):
    layer = model.model.layers[2].self_attn
    layer.o_proj.__class__ = Linear8bit


def float8(model):
    layer = model.model.layers[2].self_attn
    layer.o_proj.weight = torch.nn.Parameter(layer.o_proj.weight.to(torch.float8_e4m3fn), requires_grad=False)


@pytest.mark.parametrize("change, message", [
    (quantised, r"layers.2.self_attn.o_proj is a \S*Linear8bit of float32 weights.*before quantising"),
    (float8, "layers.2.self_attn.o_proj is a .*Linear of float8_e4m3fn weights"),
])
def test_a_quantised_o_proj_is_refused(change, message):
    model = fresh("llama")
    change(model)
    with pytest.raises(ValueError, match=message):
        TerseCache.for_model(model, "k4v4", fold_output_rotation=True)
    assert fold.of(model.config) is None


def test_what_stands_between_values_and_o_proj_is_found_out():
    """A gate by channel does not commute with the rotation: the weights stay as they were, to the bit."""
    model = fresh("llama")
    gate = torch.rand(256)
    model.model.layers[1].self_attn.o_proj.register_forward_pre_hook(lambda _, inputs: (inputs[0] * gate,))
    kept = weights(model)
    with pytest.raises(ValueError, match="more than a product stands between v_proj and o_proj"):
        fold_output_rotation(model)
    assert all(torch.equal(kept[key], weight) for key, weight in model.state_dict().items())
    assert fold.of(model.config) is None


def test_models_without_such_projections_are_refused():
    config = transformers.GPT2Config(vocab_size=99, n_embd=64, n_layer=2, n_head=2)
    with pytest.raises(ValueError, match="GPT2LMHeadModel has no v_proj"):
        fold_output_rotation(transformers.GPT2LMHeadModel(config))


def test_caches_know_whether_their_model_is_folded():
    model, ids = fresh("qwen2"), tokens(1, 20)
    with pytest.raises(ValueError, match="changes a model's weights: use TerseCache.for_model"):
        TerseCache(model.config, "k4v4", fold_output_rotation=True)
    with pytest.raises(ValueError, match="'kivi-k4v4' does not rotate values"):
        TerseCache.for_model(model, "kivi-k4v4", fold_output_rotation=True)
    assert fold.of(model.config) is None
    early = packed(model, "k4v4")
    forward(model, "tersekv", early, ids)
    folded = fold_output_rotation(model, keep_originals=True)
    with pytest.raises(ValueError, match="folded already"):
        fold_output_rotation(model)
    with pytest.raises(ValueError, match="folded or unfolded .* since this cache got its tokens"):
        forward(model, "tersekv", early, ids[:, :1])
    with pytest.raises(ValueError, match="folded or unfolded .* since this cache got its tokens"):
        forward(model, "sdpa", early, ids[:, :1])
    early.reset()
    forward(model, "tersekv", early, ids)
    late = TerseCache.for_model(model, "k4v4", fold_output_rotation=True)
    want = forward(model, "tersekv", late, ids)
    twin = copy.deepcopy(late)
    assert torch.equal(forward(model, "tersekv", twin, ids[:, :1]), forward(model, "tersekv", late, ids[:, :1]))
    folded.unfold()
    for cache in (late, twin):
        with pytest.raises(ValueError, match="unfolded since: make another cache"):
            forward(model, "tersekv", cache, ids[:, :1])
    with pytest.raises(ValueError, match="taken back already"):
        folded.unfold()
    again = forward(model, "tersekv", packed(model, "k4v4"), ids)
    assert float((again - want).abs().max()) < 1e-3 * float(want.abs().max())


def test_a_profile_is_of_the_model_as_it_is(tmp_path):
    """Means of values that are not rotated would not do."""
    model = fresh("llama")
    ids = tokens(1, 150)
    report = tersekv.measure_kv_norm_ratio(model, input_ids=ids)
    with pytest.raises(ValueError, match="the profile is of the model before"):
        TerseCache.for_model(model, "k4v4+mean=profile", profile=report.profile, fold_output_rotation=True)
    fold_output_rotation(model)
    report = tersekv.measure_kv_norm_ratio(model, input_ids=ids)
    cache = TerseCache.for_model(model, "k4v4+mean=profile", profile=report.profile, fold_output_rotation=True)
    want = exact(model, ids)
    got = forward(model, "tersekv", cache, ids)
    assert float((got - want).square().mean().sqrt() / want.std()) < 0.1


def test_all_models_of_the_tests_fold_or_say_why():
    for name in MODELS:
        model = fresh(name)
        try:
            fold_output_rotation(model).unfold()
        except ValueError as refused:
            assert name in ("gemma4",) and "fold_output_rotation" in str(refused), (name, refused)
