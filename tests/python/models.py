# SPDX-License-Identifier: Apache-2.0
"""Tiny models with random weights, made from configurations, and what runs them."""
import functools

import torch
import transformers
from transformers import DynamicCache

from tersekv import TerseCache

VOCABULARY = 199
WINDOW = 16
COMMON = dict(vocab_size=VOCABULARY, hidden_size=128, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=4096, tie_word_embeddings=False)
FOUR = {**COMMON, "num_hidden_layers": 4}
ROPE = dict(rope_type="default", rope_theta=10000.0)
ALTERNATING = ["sliding_attention", "full_attention"]

MODELS = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**COMMON, "hidden_size": 256})),
    "llama_mha_bias": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **{**COMMON, "num_key_value_heads": 4}, head_dim=128, attention_bias=True)),
    "qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**{**COMMON, "hidden_size": 256})),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**COMMON, head_dim=128)),
    "mistral": lambda: transformers.MistralForCausalLM(transformers.MistralConfig(
        **COMMON, head_dim=64, sliding_window=WINDOW)),
    "gemma2": lambda: transformers.Gemma2ForCausalLM(transformers.Gemma2Config(
        **FOUR, head_dim=256, sliding_window=WINDOW, query_pre_attn_scalar=64, attn_logit_softcapping=5.0)),
    "gemma3": lambda: transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(
        **FOUR, head_dim=64, sliding_window=WINDOW, query_pre_attn_scalar=64, layer_types=ALTERNATING * 2)),
    "gpt_oss": lambda: transformers.GptOssForCausalLM(transformers.GptOssConfig(
        **FOUR, head_dim=64, sliding_window=WINDOW, num_local_experts=4, num_experts_per_tok=2, rope_parameters=ROPE)),
    "lfm2": lambda: transformers.Lfm2ForCausalLM(transformers.Lfm2Config(
        **FOUR, layer_types=["conv", "full_attention"] * 2, block_auto_adjust_ff_dim=False)),
    "qwen2_moe": lambda: transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(  # passes no window to attention
        **FOUR, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=4, layer_types=ALTERNATING * 2,
        num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, shared_expert_intermediate_size=64)),
    "gemma3n": lambda: transformers.Gemma3nForCausalLM(transformers.Gemma3nTextConfig(  # layers share keys and values
        **{**COMMON, "num_hidden_layers": 6, "intermediate_size": [128] * 6}, head_dim=64, sliding_window=WINDOW,
        num_kv_shared_layers=2, layer_types=ALTERNATING * 3, vocab_size_per_layer_input=VOCABULARY,
        hidden_size_per_layer_input=16, laurel_rank=8)),
    "gemma4": lambda: transformers.Gemma4ForCausalLM(transformers.Gemma4TextConfig(  # and attend with the last query only
        **{**COMMON, "num_hidden_layers": 6}, head_dim=64, global_head_dim=64, sliding_window=WINDOW,
        num_kv_shared_layers=2, layer_types=ALTERNATING * 3, vocab_size_per_layer_input=VOCABULARY,
        hidden_size_per_layer_input=16)),
}
SLIDING = ("mistral", "gemma2", "gemma3", "gpt_oss", "qwen2_moe", "gemma3n", "gemma4")


@functools.cache
def make(name, dtype=torch.float32):
    """Shared by the tests: set the attention you need before each use."""
    torch.manual_seed(0)
    model = MODELS[name]()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if weight.ndim >= 2:
                scale = 1.0 if "embed_tokens" in key else 1.3 * weight.shape[-1] ** -0.5
                weight.copy_(torch.randn(weight.shape, generator=generator) * scale)
            elif "sinks" in key or key.endswith("bias"):
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.5)
    model.generation_config.eos_token_id = model.generation_config.bos_token_id = None
    model.generation_config.pad_token_id = 0
    return model.to(dtype).eval()


def tokens(batch, length, seed=1):
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def left_padded(lengths, seed=2):
    width = max(lengths)
    ids = tokens(len(lengths), width, seed)
    mask = torch.ones_like(ids)
    for row, length in enumerate(lengths):
        ids[row, :width - length] = 0
        mask[row, :width - length] = 0
    return ids, mask


def stock(model):
    return DynamicCache(config=model.config)


def packed(model, kv="f32", **options):
    return TerseCache(model.config, kv, **options)


def generate(model, attention, cache, ids, mask=None, new=24, **options):
    model.set_attn_implementation(attention)
    mask = torch.ones_like(ids) if mask is None else mask
    options.setdefault("do_sample", False)
    return model.generate(input_ids=ids, attention_mask=mask, past_key_values=cache, max_new_tokens=new,
                          return_dict_in_generate=True, output_logits=True, **options)


@torch.no_grad()
def forward(model, attention, cache, ids, mask=None, **options):
    model.set_attn_implementation(attention)
    return model(input_ids=ids, attention_mask=mask, past_key_values=cache, **options).logits


def logit_error(a, b):
    return max(float((x.float() - y.float()).abs().max()) for x, y in zip(a.logits, b.logits, strict=True))
