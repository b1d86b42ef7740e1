# SPDX-License-Identifier: Apache-2.0
"""The engine: what it returns is what caches and codecs say."""
import pytest
import torch

from models import forward, make, stock, tokens
from tersekv import TurboQuantEngine

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning", "ignore::FutureWarning")


class Tokenizer:
    """Letters as tokens."""

    def __call__(self, text, return_tensors):
        ids = torch.tensor([[3 + ord(c) % 190 for c in text]])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def decode(self, ids, skip_special_tokens):
        return " ".join(map(str, ids.tolist()))


def test_generate():
    model = make("llama")
    model.set_attn_implementation("eager")
    prompt = "the quick brown fox"
    result = TurboQuantEngine(64, kv="f32").generate(model, Tokenizer(), prompt, max_new_tokens=20)
    assert model.config._attn_implementation == "eager"  # as it was
    ids = Tokenizer()(prompt, "pt")["input_ids"]
    want = model.generate(ids, attention_mask=torch.ones_like(ids), past_key_values=stock(model), max_new_tokens=20,
                          do_sample=False)[0, ids.shape[1]:]
    assert result["tokens"] == want.tolist() and result["text"] == " ".join(map(str, want.tolist()))
    assert result["stats"]["spec"] == "f32" and result["stats"]["tokens_per_second"] > 0


@pytest.mark.parametrize("batch", [1, 3])
def test_compressing_a_filled_cache(batch):
    model = make("llama")
    cache = stock(model)
    forward(model, "eager", cache, tokens(batch, 400))
    engine = TurboQuantEngine(64, 4)
    packed = engine.compress_kv_cache(cache)
    stats = engine.compression_stats(packed)
    assert stats["tokens"] == 3 * batch * 400 and len(stats["layers"]) == 3
    assert stats["ratio"] == pytest.approx(stats["bytes_f16"] / stats["bytes_used"])
    assert 0.985 < stats["cosine_similarity"] < 1
    three = engine.compress_kv_3bit(cache)
    assert three.spec == "k3v3" and three.stats()["bytes_used"] < stats["bytes_used"]
    worse = TurboQuantEngine(64, 3).compression_stats(three, cache)
    assert worse["cosine_similarity"] < stats["cosine_similarity"] and worse["ratio"] > stats["ratio"]
    following = tokens(batch, 1, 5)
    logits = forward(model, "tersekv", packed, following)  # and goes on from there
    want = forward(model, "eager", cache, following)
    assert (logits - want).norm() / want.norm() < 0.2
    with pytest.raises(ValueError, match="same tokens"):
        engine.compression_stats(packed, [(k[:, :, 1:], v) for k, v in ((c.keys, c.values) for c in cache.layers)])


def test_vectors():
    engine = TurboQuantEngine(64, 4)
    k, v, q = torch.randn(2, 2, 50, 64), torch.randn(2, 2, 50, 64), torch.randn(2, 4, 3, 64)
    ck, cv = engine.compress_keys(k), engine.compress_values(v)
    assert ck["packed"].shape == (2, 2, 50, 32)
    out = engine.fused_attention(q, ck, cv)
    want = torch.nn.functional.scaled_dot_product_attention(q, engine.decompress_keys(ck), engine.decompress_values(cv),
                                                            enable_gqa=True)
    assert torch.allclose(out, want, atol=1e-5)
    exact = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert torch.cosine_similarity(out.flatten(), exact.flatten(), dim=0) > 0.98


def test_qjl_keys_on_request():
    engine = TurboQuantEngine(64, 4, qjl_keys=True)
    assert engine.spec == "k4pv4"
    k = torch.randn(30, 64)
    assert torch.cosine_similarity(engine.decompress_keys(engine.compress_keys(k)), k, dim=-1).mean() > 0.9


def test_auto_tune_keeps_the_floor():
    engine = TurboQuantEngine(64, 8)
    tuned = engine.auto_tune(600, bits=(2, 4, 8), repeats=2)
    assert [(row["spec"], row["arithmetic"]) for row in tuned["rows"]] == [
        (f"k{b}v{b}", a) for b in (2, 4, 8) for a in ("int16", "fast")]
    best = tuned["best"]
    assert best["similarity"] >= 0.99 and engine.spec == best["spec"] and "cpu" in tuned["backend"]
    by_spec = {row["spec"]: row["similarity"] for row in tuned["rows"] if row["arithmetic"] == "int16"}
    assert by_spec["k2v2"] < by_spec["k4v4"] < by_spec["k8v8"]
    assert engine.auto_tune(200, bits=(2,), min_similarity=1.5, repeats=1)["best"] is None


@pytest.mark.parametrize("make_it, message", [
    (lambda: TurboQuantEngine(64, 1), "from 2 to 8"),
    (lambda: TurboQuantEngine(64, device="cuda"), "no CUDA"),
    (lambda: TurboQuantEngine(64, kv="k4v4", qjl_keys=True), "one of them"),
    (lambda: TurboQuantEngine(64).compress_kv_cache([]), "fill it first"),
    (lambda: TurboQuantEngine(64).auto_tune(9, keys=torch.zeros(1, 2, 9, 64)), "together"),
    (lambda: TurboQuantEngine(64).auto_tune(9, keys=torch.zeros(1, 2, 8, 64), values=torch.zeros(1, 2, 8, 64)),
     "kv_heads, 9, 64"),
])
def test_wrong_input_is_named(make_it, message):
    with pytest.raises(ValueError) as caught:
        make_it()
    assert message in str(caught.value)
