# SPDX-License-Identifier: Apache-2.0
"""Architectures of random models: what each has beside the plain decoder of random_model.py.

A function takes the builder and the layer's number and writes the layer's tensors; names as llama.cpp expects them.
"""
import dataclasses
from collections.abc import Callable

EXPERTS, EXPERTS_USED = 4, 2
# What llama.cpp's GELU adds is scaled down: it rounds its input to f16, so that any two ways of computing the same
# would differ by much more than their own error.
QUIET = 0.1


@dataclasses.dataclass(frozen=True)
class Arch:
    help: str
    layer: Callable  # (builder, number of the layer)
    keys: Callable = lambda b: None  # writes metadata of its own
    more: Callable = lambda b: None  # writes tensors that belong to no layer
    layers: int = 2
    options: dict = dataclasses.field(default_factory=dict)  # of --window and so on: defaults
    embd_is_width: bool = False  # embedding_length = heads * head-dim
    tied: bool = False  # token_embd is used again for the logits
    rope: bool = True


# --- parts ---------------------------------------------------------------------------------------------------


def attention(b, i, bias=0.0, qk_norm=0.0, output_bias=False, q_rows=None):
    """qk_norm: mean weight of the norms of each head's Q and K; 0: none."""
    blk = f"blk.{i}."
    for name, width in (("attn_q", q_rows or b.q_width), ("attn_k", b.kv_width), ("attn_v", b.kv_width)):
        b.matrix(blk + name, width, b.embd)
        if bias:
            b.normal(blk + name + ".bias", (width,), 0, bias)
    if qk_norm:
        b.norm(blk + "attn_q_norm", b.dim, qk_norm)
        b.norm(blk + "attn_k_norm", b.dim, qk_norm)
    b.matrix(blk + "attn_output", b.embd, b.q_width)
    if output_bias:
        b.normal(blk + "attn_output.bias", (b.embd,), 0, 0.1)


def dense(b, i, gate=True, norm="ffn_norm"):
    blk = f"blk.{i}."
    b.norm(blk + norm)
    if gate:
        b.matrix(blk + "ffn_gate", b.ffn, b.embd)
    b.matrix(blk + "ffn_up", b.ffn, b.embd)
    b.matrix(blk + "ffn_down", b.embd, b.ffn)


def experts(b, i, bias=0.0):
    blk = f"blk.{i}."
    b.matrix(blk + "ffn_gate_inp", EXPERTS, b.embd)
    for name, rows, inputs in (("gate", b.ffn, b.embd), ("up", b.ffn, b.embd), ("down", b.embd, b.ffn)):
        b.normal(f"{blk}ffn_{name}_exps.weight", (EXPERTS, rows, inputs), 0, inputs**-0.5)
        if bias:
            b.normal(f"{blk}ffn_{name}_exps.bias", (EXPERTS, rows), 0, bias)
    if bias:
        b.normal(blk + "ffn_gate_inp.bias", (EXPERTS,), 0, bias)


def expert_keys(b):
    b.u32("expert_count", EXPERTS)
    b.u32("expert_used_count", EXPERTS_USED)
    b.u32("expert_feed_forward_length", b.ffn)


# --- one architecture each -----------------------------------------------------------------------------------


def llama(b, i):
    b.norm(f"blk.{i}.attn_norm")
    attention(b, i)
    dense(b, i)


def qwen2(b, i):
    b.norm(f"blk.{i}.attn_norm")
    attention(b, i, bias=0.5)
    dense(b, i)


def qwen2vl_keys(b):
    b.writer.add_rope_dimension_sections([b.dim // 8, b.dim // 4, b.dim // 8, 0])


def qwen3(b, i):
    b.norm(f"blk.{i}.attn_norm")
    attention(b, i, qk_norm=1.0)
    dense(b, i)


def mpt(b, i):
    b.norm(f"blk.{i}.attn_norm")
    b.matrix(f"blk.{i}.attn_qkv", b.q_width + 2 * b.kv_width, b.embd)
    b.matrix(f"blk.{i}.attn_output", b.embd, b.q_width)
    dense(b, i, gate=False)


def mpt_keys(b):
    b.f32("attention.layer_norm_epsilon", 1e-5)
    b.f32("attention.max_alibi_bias", 8.0)


def gemma2(b, i, qk_norm=0.0):
    b.norm(f"blk.{i}.attn_norm")
    attention(b, i, qk_norm=qk_norm)
    b.norm(f"blk.{i}.post_attention_norm")
    dense(b, i)
    b.norm(f"blk.{i}.post_ffw_norm", mean=QUIET)


def gemma2_keys(b):
    b.u32("attention.sliding_window", b.args.window)
    b.f32("attn_logit_softcapping", b.args.softcap)
    b.f32("final_logit_softcapping", 30.0)


def gemma3_keys(b):
    b.u32("attention.sliding_window", b.args.window)
    b.u32("attention.sliding_window_pattern", 3)
    b.f32("rope.freq_base_swa", 10000.0)


def gpt_oss(b, i):
    b.norm(f"blk.{i}.attn_norm")
    attention(b, i, bias=0.5, output_bias=True)
    b.normal(f"blk.{i}.attn_sinks.weight", (b.args.heads,), 1, 1)
    b.norm(f"blk.{i}.post_attention_norm")
    experts(b, i, bias=0.1)


def gpt_oss_keys(b):
    expert_keys(b)
    b.u32("attention.sliding_window", b.args.window)


def phi3(b, i):
    b.norm(f"blk.{i}.attn_norm")
    b.matrix(f"blk.{i}.attn_qkv", b.q_width + 2 * b.kv_width, b.embd)
    b.matrix(f"blk.{i}.attn_output", b.embd, b.q_width)
    b.norm(f"blk.{i}.ffn_norm")
    b.matrix(f"blk.{i}.ffn_up", 2 * b.ffn, b.embd)
    b.matrix(f"blk.{i}.ffn_down", b.embd, b.ffn)


def phi3_keys(b):
    b.string("rope.scaling.type", "longrope")
    b.u32("rope.scaling.original_context_length", b.args.trained)
    b.f32("rope.scaling.attn_factor", 1.1)


def phi3_more(b):  # far apart: a wrong choice shows
    b.normal("rope_factors_short.weight", (b.dim // 2,), 1.2, 0.1)
    b.normal("rope_factors_long.weight", (b.dim // 2,), 4, 0.5)


def deepseek2(b, i):
    blk, rope, latent, heads = f"blk.{i}.", b.dim, b.args.latent, b.args.heads
    b.norm(blk + "attn_norm")
    b.matrix(blk + "attn_q_a", b.dim, b.embd)
    b.norm(blk + "attn_q_a_norm", b.dim)
    b.matrix(blk + "attn_q_b", heads * 2 * b.dim, b.dim)
    b.matrix(blk + "attn_kv_a_mqa", latent + rope, b.embd)
    b.norm(blk + "attn_kv_a_norm", latent)
    b.normal(blk + "attn_k_b.weight", (heads, latent, b.dim), 0, b.dim**-0.5)
    b.normal(blk + "attn_v_b.weight", (heads, b.dim, latent), 0, latent**-0.5)
    b.matrix(blk + "attn_output", b.embd, b.q_width)
    dense(b, i)


def deepseek2_keys(b):
    expert_keys(b)
    b.u32("expert_shared_count", 1)
    b.u32("leading_dense_block_count", b.args.layers)  # no experts
    b.u32("attention.q_lora_rank", b.dim)
    b.u32("attention.kv_lora_rank", b.args.latent)
    b.u32("attention.key_length_mla", 2 * b.dim)
    b.u32("attention.value_length_mla", b.dim)


def deepseek32(b, i):
    deepseek2(b, i)
    blk = f"blk.{i}.indexer."
    b.norm(blk + "k_norm", 64)
    b.normal(blk + "k_norm.bias", (64,), 0, 0.1)
    b.matrix(blk + "proj", 4, b.embd)
    b.matrix(blk + "attn_k", 64, b.embd)
    b.matrix(blk + "attn_q_b", 4 * 64, b.dim)


def deepseek32_keys(b):
    deepseek2_keys(b)
    b.f32("expert_weights_scale", 1.0)
    b.writer.add_bool(f"{b.args.arch}.expert_weights_norm", True)
    b.u32("expert_gating_func", 2)
    b.u32("attention.indexer.head_count", 4)
    b.u32("attention.indexer.key_length", 64)
    b.u32("attention.indexer.top_k", 32)


def gemma3n(b, i):
    blk, inputs = f"blk.{i}.", 4
    gemma2(b, i, qk_norm=b.dim**-0.25)  # scores are not scaled otherwise
    b.matrix(blk + "inp_gate", 256, b.embd)
    b.matrix(blk + "proj", b.embd, 256)
    b.norm(blk + "post_norm", mean=QUIET)
    b.normal(blk + "altup_correct_coef.weight", (inputs, inputs), 0, 0.2)
    b.normal(blk + "altup_correct_scale.weight", (b.embd,), 1, 0.1)
    b.normal(blk + "altup_predict_coef.weight", (inputs * inputs, inputs), 0, 0.2)
    b.matrix(blk + "altup_router", inputs, b.embd)
    b.norm(blk + "altup_router_norm")
    b.matrix(blk + "laurel_l", 64, b.embd)
    b.matrix(blk + "laurel_r", b.embd, 64)
    b.norm(blk + "laurel_post_norm")


def gemma3n_keys(b):
    b.u32("attention.sliding_window", b.args.window)
    b.f32("rope.freq_base_swa", 10000.0)
    b.f32("final_logit_softcapping", 30.0)


def gemma3n_more(b):
    for name in ("altup_proj", "altup_unembd_proj"):
        b.normal(name + ".weight", (3, b.embd, b.embd), 0, b.embd**-0.5)
    b.normal("per_layer_token_embd.weight", (b.args.vocab, 256 * b.args.layers), 0, 256**-0.5)
    b.matrix("per_layer_model_proj", 256 * b.args.layers, b.embd)
    b.norm("per_layer_proj_norm", 256)


def is_conv(i):
    return i % 2 == 0


def lfm2(b, i):
    blk = f"blk.{i}."
    b.norm(blk + "attn_norm")
    if is_conv(i):
        b.normal(blk + "shortconv.conv.weight", (b.embd, 3), 0, 3**-0.5)
        b.matrix(blk + "shortconv.in_proj", 3 * b.embd, b.embd)
        b.matrix(blk + "shortconv.out_proj", b.embd, b.embd)
    else:
        attention(b, i, qk_norm=1.0)
    dense(b, i)


def qwen3next(b, i):
    blk, heads, inner = f"blk.{i}.", 2, 128
    b.norm(blk + "attn_norm")
    if is_conv(i):
        b.matrix(blk + "attn_qkv", 3 * inner, b.embd)
        b.matrix(blk + "attn_gate", inner, b.embd)
        b.normal(blk + "ssm_conv1d.weight", (3 * inner, 4), 0, 0.5)
        b.normal(blk + "ssm_dt.bias", (heads,), 0, 0.5)
        b.normal(blk + "ssm_a", (heads,), -1, 0.1)
        b.matrix(blk + "ssm_ba", 2 * heads, b.embd)
        b.norm(blk + "ssm_norm", inner // heads)
        b.matrix(blk + "ssm_out", b.embd, inner)
    else:
        attention(b, i, qk_norm=1.0, q_rows=2 * b.q_width)  # a gate for each query
    b.norm(blk + "post_attention_norm")
    experts(b, i)
    b.normal(blk + "ffn_gate_inp_shexp.weight", (b.embd,), 0, b.embd**-0.5)
    for name, rows, inputs in (("gate", b.ffn, b.embd), ("up", b.ffn, b.embd), ("down", b.embd, b.ffn)):
        b.matrix(f"{blk}ffn_{name}_shexp", rows, inputs)


def qwen3next_keys(b):
    expert_keys(b)
    b.u32("expert_shared_feed_forward_length", b.ffn)
    b.u32("full_attention_interval", 2)
    for key, size in (("conv_kernel", 4), ("inner_size", 128), ("state_size", 64), ("time_step_rank", 2), ("group_count", 2)):
        b.u32("ssm." + key, size)


def llama4(b, i):
    b.norm(f"blk.{i}.attn_norm")
    attention(b, i)
    dense(b, i)


def llama4_keys(b):
    expert_keys(b)
    b.u32("interleave_moe_layer_step", 0)


def grok(b, i):
    b.norm(f"blk.{i}.attn_norm")
    attention(b, i)
    b.norm(f"blk.{i}.attn_output_norm")
    b.norm(f"blk.{i}.ffn_norm")
    experts(b, i)
    b.norm(f"blk.{i}.post_ffw_norm")


def mamba(b, i):
    blk, inner, state, rank = f"blk.{i}.", 2 * b.embd, 16, 8
    b.norm(blk + "attn_norm")
    b.matrix(blk + "ssm_in", 2 * inner, b.embd)
    b.normal(blk + "ssm_conv1d.weight", (inner, 4), 0, 0.5)
    b.normal(blk + "ssm_conv1d.bias", (inner,), 0, 0.1)
    b.matrix(blk + "ssm_x", rank + 2 * state, inner)
    b.matrix(blk + "ssm_dt", inner, rank)
    b.normal(blk + "ssm_dt.bias", (inner,), 0, 0.1)
    b.normal(blk + "ssm_a", (inner, state), -1, 0.1)
    b.normal(blk + "ssm_d", (inner,), 1, 0.1)
    b.matrix(blk + "ssm_out", b.embd, inner)


def mamba_keys(b):
    for key, size in (("conv_kernel", 4), ("inner_size", 2 * b.embd), ("state_size", 16), ("time_step_rank", 8)):
        b.u32("ssm." + key, size)


def t5(b, i):
    for side in ("enc", "dec"):
        blk = f"{side}.blk.{i}."
        for name in ("attn", "cross_attn") if side == "dec" else ("attn",):
            b.norm(f"{blk}{name}_norm")
            for part, rows, inputs in (("q", b.kv_width, b.embd), ("k", b.kv_width, b.embd),
                                       ("v", b.kv_width, b.embd), ("o", b.embd, b.kv_width)):
                b.matrix(f"{blk}{name}_{part}", rows, inputs)
            if name == "attn" and i == 0:
                b.normal(f"{blk}attn_rel_b.weight", (32, b.args.heads), 0, 1)
        b.norm(blk + "ffn_norm")
        for name, rows, inputs in (("gate", b.ffn, b.embd), ("up", b.ffn, b.embd), ("down", b.embd, b.ffn)):
            b.matrix(f"{blk}ffn_{name}", rows, inputs)


def t5_more(b):
    b.norm("enc.output_norm")
    b.norm("dec.output_norm")


ARCHS = {
    "llama": Arch("rotary positions, gated feed-forward; --embd may differ from heads * head-dim", llama),
    "qwen2": Arch("as llama, with biases on Q, K and V", qwen2, embd_is_width=True),
    "qwen2vl": Arch("as qwen2, with M-RoPE", qwen2, qwen2vl_keys, embd_is_width=True),
    "qwen3": Arch("as llama, with norms of each head's Q and K", qwen3),
    "mpt": Arch("ALiBi instead of rotary positions, LayerNorm, fused QKV", mpt, mpt_keys, embd_is_width=True, rope=False),
    "gemma2": Arch("soft cap on the attention scores; every second layer, from the first on, sees --window tokens only",
                   gemma2, gemma2_keys, options={"window": 256, "softcap": 5.0}, tied=True),
    "gemma3": Arch("norms of Q and K; two layers of three see --window tokens only", lambda b, i: gemma2(b, i, 1.0),
                   gemma3_keys, layers=4, options={"window": 256}, tied=True),
    "gemma3n": Arch("layers from the 20th on read the KV of the 18th and 19th; four of five see --window tokens only",
                    gemma3n, gemma3n_keys, gemma3n_more, layers=25, options={"window": 256}, tied=True),
    "gpt-oss": Arch("learned sinks, experts; every second layer, from the first on, sees --window tokens only", gpt_oss,
                    gpt_oss_keys, options={"window": 128}),
    "phi3": Arch("LongRoPE: other factors for contexts above --trained tokens", phi3, phi3_keys, phi3_more,
                 options={"trained": 512}, embd_is_width=True),
    "deepseek2": Arch("MLA: one latent of --latent values and --head-dim rotary ones", deepseek2, deepseek2_keys,
                      options={"latent": 0}),
    "deepseek32": Arch("as deepseek2, with an indexer that picks keys", deepseek32, deepseek32_keys,
                       options={"latent": 0}),
    "lfm2": Arch("every second layer, from the first on, is a short convolution", lfm2,
                 lambda b: b.u32("shortconv.l_cache", 3), layers=4, embd_is_width=True, tied=True),
    "qwen3next": Arch("every second layer, from the first on, is a gated delta net; experts", qwen3next, qwen3next_keys,
                      layers=4),
    "llama4": Arch("attention in chunks of 8192", llama4, llama4_keys, layers=4),
    "grok": Arch("no flash attention in llama.cpp", grok, expert_keys, embd_is_width=True),
    "mamba": Arch("recurrent only", mamba, mamba_keys, tied=True, rope=False),
    "t5": Arch("an encoder and a decoder", t5, lambda b: b.u32("attention.relative_buckets_count", 32), t5_more,
               tied=True, rope=False),
}
