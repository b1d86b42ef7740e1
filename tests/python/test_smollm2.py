# SPDX-License-Identifier: Apache-2.0
"""A real model on real text: SmolLM2-135M-Instruct, its GGUF loaded by Transformers as float32."""
import os
import pathlib

import pytest
import torch

import tersekv
from models import left_padded
from tersekv import TerseCache, patch_model

CACHE = os.environ.get("TERSEKV_CACHE_DIR") or os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tersekv")
FOLDER, FILE = pathlib.Path(CACHE) / "models", "SmolLM2-135M-Instruct.Q4_1.gguf"
TEXT = (pathlib.Path(__file__).parents[2] / "LICENSE").read_text()

pytestmark = [
    pytest.mark.filterwarnings("error::RuntimeWarning", "ignore::FutureWarning"),
    pytest.mark.skipif(not (FOLDER / FILE).exists(), reason="scripts/setup.sh fetches the model"),
]


@pytest.fixture(scope="module")
def model():
    from transformers import AutoModelForCausalLM
    return AutoModelForCausalLM.from_pretrained(FOLDER, gguf_file=FILE, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer
    return AutoTokenizer.from_pretrained(FOLDER, gguf_file=FILE)


@pytest.fixture(autouse=True)
def threads():
    torch.set_num_threads(2)
    tersekv.set_num_threads(2)


def generate(model, attention, cache, ids, mask=None, **options):
    from transformers import DynamicCache
    model.set_attn_implementation(attention)
    cache = DynamicCache(config=model.config) if cache is None else cache
    mask = torch.ones_like(ids) if mask is None else mask
    return model.generate(ids, attention_mask=mask, past_key_values=cache, do_sample=False,
                          pad_token_id=0, **{"max_new_tokens": 200, **options})


def test_f32_gives_200_tokens_of_dynamic_cache(model, tokenizer):
    ids = tokenizer("The history of the steam engine begins", return_tensors="pt").input_ids
    reference = generate(model, "sdpa", None, ids, min_new_tokens=200)
    assert torch.equal(generate(model, "tersekv", TerseCache(model.config, "f32"), ids, min_new_tokens=200), reference)


def test_beams_and_padding(model, tokenizer):
    tokenizer.pad_token, tokenizer.padding_side = tokenizer.pad_token or tokenizer.eos_token, "left"
    batch = tokenizer(["Water boils at", "A cache keeps what was computed before, so that"], return_tensors="pt",
                      padding=True)
    for options in (dict(max_new_tokens=12), dict(max_new_tokens=8, num_beams=4)):
        reference = generate(model, "sdpa", None, batch.input_ids, batch.attention_mask, **options)
        cache = TerseCache(model.config, "f32")
        assert torch.equal(generate(model, "tersekv", cache, batch.input_ids, batch.attention_mask, **options),
                           reference)


def test_top_1_agreement_and_kl(model, tokenizer):
    """600 tokens of the licence, each token seeing what decoding at its place would see (prefill="decode")."""
    ids = tokenizer(TEXT, return_tensors="pt").input_ids[:, :600]
    model.set_attn_implementation("sdpa")
    with torch.no_grad():
        reference = model(ids, use_cache=False).logits[0].log_softmax(-1)
    patch_model(model)
    kl, top1 = {}, {}
    for kv in ("f32", "k8v8", "k4v4", "k2v2"):
        cache = TerseCache.for_model(model, kv, prefill="decode")
        with torch.no_grad():
            logits = model(ids, past_key_values=cache).logits[0].log_softmax(-1)
        kl[kv] = float((reference.exp() * (reference - logits)).sum(-1).mean())
        top1[kv] = float((reference.argmax(-1) == logits.argmax(-1)).float().mean())
        assert cache.stats()["tokens_packed"] == 30 * (600 if kv == "f32" else 600 - 4 - 128)
    print({kv: (f"{kl[kv]:.2e}", f"{top1[kv]:.4f}") for kv in kl})
    assert kl["f32"] < 1e-6 and top1["f32"] == 1.0
    assert kl["k8v8"] < 1e-4 and top1["k8v8"] >= 0.99
    assert kl["k8v8"] < kl["k4v4"] < 0.02 < kl["k2v2"] and top1["k4v4"] >= 0.95


def test_left_padded_is_a_left_padding():
    ids, mask = left_padded([3, 1])
    assert mask.tolist() == [[1, 1, 1], [0, 0, 1]] and ids[1, :2].tolist() == [0, 0]
