# SPDX-License-Identifier: Apache-2.0
"""generate() with a TerseCache that stores exactly (f32) gives what DynamicCache gives, token for token."""
import copy
import warnings

import pytest
import torch

from models import MODELS, SLIDING, forward, generate, left_padded, logit_error, make, packed, stock, tokens

LOGITS = 2e-4  # fp32 in another order

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning", "ignore::FutureWarning")
every_model = pytest.mark.parametrize("name", MODELS)
some_models = pytest.mark.parametrize("name", ["qwen2", "gemma2", "gpt_oss", "lfm2"])


def same(reference, result, logits=True):
    assert torch.equal(reference.sequences, result.sequences)
    if logits:
        assert logit_error(reference, result) < LOGITS


@every_model
def test_padded_batch_past_the_window(name):
    """Prompts shorter and longer than the window of 16, left padding, then 40 steps."""
    model = make(name)
    ids, mask = left_padded([50, 31, 7, 13])
    reference = generate(model, "eager", stock(model), ids, mask, new=40)
    cache = packed(model)
    same(reference, generate(model, "tersekv", cache, ids, mask, new=40))
    stats = cache.stats()
    assert stats["decodes_because_of"] == [] and stats["batch"] == 4 and stats["slots"] == 89
    layers = len(stats["layers"])
    assert stats["tokens"] == layers * (50 + 31 + 7 + 13 + 4 * 39)  # no padding is stored


def test_200_tokens():
    model = make("llama")
    ids = tokens(1, 10)
    same(generate(model, "eager", stock(model), ids, new=200), generate(model, "tersekv", packed(model), ids, new=200))


@some_models
def test_rows_of_a_padded_batch_of_8_are_those_of_batch_1(name):
    model = make(name)
    ids, mask = left_padded([3, 40, 17, 29, 5, 33, 8, 21])
    together = generate(model, "tersekv", packed(model), ids, mask, new=30)
    for row in range(8):
        alone = generate(model, "tersekv", packed(model), ids[row:row + 1, mask[row] == 1], new=30)
        assert torch.equal(alone.sequences[0, -30:], together.sequences[row, -30:])


@some_models
@pytest.mark.parametrize("options", [
    dict(num_beams=4),
    dict(num_beams=4, num_return_sequences=3),
    dict(do_sample=True, num_return_sequences=3, top_k=5),
], ids=["beams", "beams_returned", "samples_returned"])
def test_beams_and_returned_sequences(name, options):
    model = make(name)
    ids, mask = left_padded([12, 30])
    torch.manual_seed(5)
    reference = generate(model, "eager", stock(model), ids, mask, new=20, **options)
    torch.manual_seed(5)
    same(reference, generate(model, "tersekv", packed(model), ids, mask, new=20, **options), logits=False)


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3", "gpt_oss"])
def test_assisted(name):
    """Drafts of a perturbed copy, and by prompt lookup: rejected tokens are cropped off again."""
    model = make(name)
    ids = tokens(1, 9).repeat(1, 3)
    reference = generate(model, "eager", stock(model), ids, new=40)
    same(reference, generate(model, "tersekv", packed(model), ids, new=40, prompt_lookup_num_tokens=4), logits=False)
    assistant = copy.deepcopy(make("llama"))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in assistant.parameters():
            if weight.ndim == 2:
                weight.add_(torch.randn(weight.shape, generator=generator) * 0.05 * weight.std())
    assistant.set_attn_implementation("eager")
    same(reference, generate(model, "tersekv", packed(model), ids, new=40, assistant_model=assistant), logits=False)


@some_models
@pytest.mark.parametrize("chunk", [7, 20])
def test_chunked_prefill(name, chunk):
    model = make(name)
    ids, mask = left_padded([50, 33])
    same(generate(model, "eager", stock(model), ids, mask),
         generate(model, "tersekv", packed(model), ids, mask, prefill_chunk_size=chunk))


@some_models
def test_two_calls_reset_and_deep_copies(name):
    model = make(name)
    ids, more = tokens(2, 11), tokens(2, 6, 9)

    def twice(attention, cache):
        first = generate(model, attention, cache, ids, new=12)
        return generate(model, attention, cache, torch.cat([first.sequences, more], 1), new=12)

    same(twice("eager", stock(model)), twice("tersekv", packed(model)))
    cache = packed(model)
    generate(model, "tersekv", cache, more, new=5)
    cache.reset()
    assert cache.stats()["tokens"] == 0 and cache.get_seq_length() == 0
    reference = generate(model, "eager", stock(model), ids, new=12)
    same(reference, generate(model, "tersekv", cache, ids, new=12))
    prefix = packed(model)
    forward(model, "tersekv", prefix, ids[:, :7])
    for _ in range(2):
        same(reference, generate(model, "tersekv", copy.deepcopy(prefix), ids, new=12))
    assert prefix.get_seq_length() == 7


@every_model
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_any_other_attention_works_by_decoding(name, attention):
    model = make(name)
    if name in ("gemma2", "gpt_oss") and attention == "sdpa":
        pytest.skip("the model has no sdpa attention")
    ids, mask = left_padded([12, 30])
    reference = generate(model, attention, stock(model), ids, mask)
    with pytest.warns(RuntimeWarning, match=f"attention '{attention}'") as caught:
        result = generate(model, attention, packed(model), ids, mask)
    assert sum(item.category is RuntimeWarning for item in caught) == 1
    same(reference, result)


@pytest.mark.parametrize("name", SLIDING)
def test_without_a_config(name):
    """Layers appear as they are used; windows come with the masks."""
    from tersekv import TerseCache
    if name in ("gemma3n", "gemma4"):
        pytest.skip("its masks are as short as its window, which only the config tells")
    model = make(name)
    ids, mask = left_padded([12, 30])
    reference = generate(model, "eager", stock(model), ids, mask)
    same(reference, generate(model, "tersekv", TerseCache(kv="f32"), ids, mask))


@every_model
def test_rollback(name):
    """As a draft model does it: some steps, then crop, past the window too."""
    if name == "lfm2":
        pytest.skip("its convolution states cannot be rolled back by stock caches either")
    model = make(name)
    ids, following, draft = tokens(2, 30), tokens(2, 12, 4), tokens(2, 2, 50)

    def run(attention, cache, drafts):
        if drafts:
            cache.activate_past_recording()
        logits = [forward(model, attention, cache, ids)[:, -1:]]
        for i in range(12):
            logits.append(forward(model, attention, cache, following[:, i:i + 1]))
            if drafts and i % 4 == 3:
                for j in range(2):
                    forward(model, attention, cache, draft[:, j:j + 1])
                cache.crop(torch.tensor(-2))
            elif drafts:
                cache.crop(0)
        return torch.cat(logits, 1)

    reference = run("eager", stock(model), False)
    assert (run("tersekv", packed(model), True) - reference).abs().max() < LOGITS


@some_models
def test_batch_operations(name):
    if name == "lfm2":
        pytest.skip("stock convolution layers have no batch operations")
    model = make(name)
    ids, mask = left_padded([12, 9])

    def run(attention, cache):
        forward(model, attention, cache, ids, mask)
        cache.batch_repeat_interleave(2)
        cache.batch_select_indices(torch.tensor([3, 0, 1]))
        longer = torch.cat([mask[[1, 0, 0]], torch.ones(3, 1, dtype=mask.dtype)], 1)
        return forward(model, attention, cache, tokens(3, 1, 8), longer)

    assert (run("tersekv", packed(model)) - run("eager", stock(model))).abs().max() < LOGITS


@every_model
def test_right_padding_then_a_step(name):
    if name == "lfm2":
        pytest.skip("convolutions run over the padding: not comparable token by token")
    model = make(name)
    ids = tokens(3, 22)
    mask = torch.ones_like(ids)
    mask[1, 15:] = mask[2, 5:] = 0
    caches = stock(model), packed(model)
    first = [forward(model, a, c, ids, mask) * mask[..., None] for a, c in zip(("eager", "tersekv"), caches)]
    assert (first[0] - first[1]).abs().max() < LOGITS
    longer = torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
    step = [forward(model, a, c, tokens(3, 1, 4), longer, position_ids=mask.sum(1, keepdim=True))
            for a, c in zip(("eager", "tersekv"), caches)]
    assert (step[0] - step[1]).abs().max() < LOGITS
    assert caches[1].stats()["tokens"] == len(caches[1].stats()["layers"]) * (22 + 15 + 5 + 3)


@pytest.mark.parametrize("additive", [False, True])
def test_four_dimensional_masks_are_decoded_for(additive):
    model = make("llama")
    ids = tokens(2, 12)
    seen = torch.ones(12, 12, dtype=torch.bool).tril()[None, None].repeat(2, 1, 1, 1)
    seen[1, :, 4:, 3] = False
    mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    reference = forward(model, "eager", stock(model), ids, mask)
    cache = packed(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = forward(model, "tersekv", cache, ids, mask if additive else seen)
    assert (result - reference).abs().max() < LOGITS
    step = torch.ones(2, 13, dtype=torch.long)
    assert (forward(model, "tersekv", cache, tokens(2, 1, 7), step) -
            forward(model, "eager", (again := stock(model), forward(model, "eager", again, ids, mask))[0],
                    tokens(2, 1, 7), step)).abs().max() < LOGITS


@every_model
def test_without_a_cache(name):
    model = make(name)
    ids = tokens(2, 40)
    mask = torch.ones_like(ids)
    mask[1, 30:] = 0
    run = lambda attention: forward(model, attention, None, ids, mask, use_cache=False) * mask[..., None]
    assert (run("tersekv") - run("eager")).abs().max() < LOGITS
    restart = torch.cat([torch.arange(15), torch.arange(25)])[None]  # two sequences packed into one row
    run = lambda attention: forward(model, attention, None, ids[:1], use_cache=False, position_ids=restart)
    assert (run("tersekv") - run("eager")).abs().max() < LOGITS


def test_gradients_flow():
    model = make("llama")
    ids = tokens(1, 8)

    def gradients(attention, cache):
        model.set_attn_implementation(attention)
        model.zero_grad()
        model(input_ids=ids, past_key_values=cache, use_cache=True).logits.square().mean().backward()
        found = {name: p.grad.clone() for name, p in model.named_parameters() if "k_proj" in name}
        model.zero_grad(set_to_none=True)
        return found

    with pytest.warns(RuntimeWarning, match="gradients"):
        ours = gradients("tersekv", packed(model))
    for name, want in gradients("eager", stock(model)).items():
        assert torch.allclose(ours[name], want, atol=1e-5 * float(want.abs().max()) + 1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    """The cache itself adds nothing: f16 and bf16 rows are stored as they are."""
    model = make("llama", dtype)
    ids, mask = left_padded([12, 30])
    kv = "bf16" if dtype == torch.bfloat16 else "f16"
    reference = generate(model, "sdpa", stock(model), ids, mask, new=8)
    result = generate(model, "tersekv", packed(model, kv), ids, mask, new=8)
    assert float((reference.logits[0].float() - result.logits[0].float()).abs().max()) < 0.1


def test_autocast():
    model = make("gemma3")
    ids, mask = left_padded([12, 30])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        reference = generate(model, "sdpa", stock(model), ids, mask, new=4)
        result = generate(model, "tersekv", packed(model), ids, mask, new=4)
    assert logit_error(reference, result) < 0.2


def test_a_compiled_model():
    """Handles break the graph at attention and are right."""
    model = make("llama")
    ids = tokens(2, 30)
    reference = generate(model, "eager", stock(model), ids, new=4)
    plain = model.forward
    model.forward = torch.compile(plain, backend="eager")
    try:
        cache = packed(model)
        same(reference, generate(model, "tersekv", cache, ids, new=4))
        assert cache.stats()["decodes_because_of"] == []
    finally:
        model.forward = plain


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_attention_may_change_midway(name):
    """Under sdpa no mask is known and padding is stored; the mask then hides stored tokens."""
    model = make(name)
    ids, mask = left_padded([30, 7])
    following, longer = tokens(2, 1, 4), torch.cat([mask, torch.ones(2, 1, dtype=mask.dtype)], 1)
    caches = stock(model), packed(model)
    with pytest.warns(RuntimeWarning):
        for cache, (first, second) in zip(caches, (("eager", "eager"), ("sdpa", "tersekv"))):
            forward(model, first, cache, ids, mask)
            result = forward(model, second, cache, following, longer)
            reference = result if cache is caches[0] else reference
    assert (result - reference).abs().max() < LOGITS
    assert "a mask that hides tokens which the cache holds" in caches[1].stats()["decodes_because_of"]
