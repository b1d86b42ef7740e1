# SPDX-License-Identifier: Apache-2.0
"""Attention of models that were loaded without it."""
from tersekv.hf import attention, compat


def patch_model(model):
    """Sets the attention of `model` to 'tersekv' and returns the model; as attn_implementation='tersekv' when loading.

    ValueError for what the packed cache cannot serve: latent attention (MLA).
    """
    if compat.uses_latent_attention(compat.decoder_config(model.config)):
        raise ValueError(f"{type(model).__name__} caches latents (MLA, kv_lora_rank): this version packs keys and "
                         "values only; use DynamicCache")
    model.set_attn_implementation(attention.NAME)
    return model
