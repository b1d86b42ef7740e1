# SPDX-License-Identifier: Apache-2.0
"""The attention function `tersekv`, registered with Transformers together with its masks."""
import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from tersekv.hf import compat
from tersekv.hf.dense import dense_attention
from tersekv.hf.handle import KVHandle
from tersekv.hf.masks import TerseMask, make_mask

NAME = "tersekv"
OBSERVERS = []  # called with (module, query, key, value, scale) of plain tensors; reports.py


@torch.compiler.disable(reason=compat.NO_GRAPH)
def attention(module, query, key, value, attention_mask, dropout=0.0, scaling=None, sliding_window=None, softcap=None,
              s_aux=None, is_causal=None, position_bias=None, output_attentions=False, **_):
    """Transformers' attention interface: query [batch, heads, queries, d]; -> [batch, queries, heads, d], None."""
    if position_bias is not None:
        raise ValueError("attention 'tersekv' has no position bias (T5 and its kin): load the model with "
                         "attn_implementation='eager'")
    if output_attentions:
        raise ValueError("attention 'tersekv' never forms attention weights: output_attentions needs "
                         "attn_implementation='eager'")
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if isinstance(key, KVHandle) and isinstance(value, KVHandle) and key.pending is value.pending:
        return key.pending.layer.attend(key.pending, query, attention_mask, config=getattr(module, "config", None),
                                        scale=scale, causal=causal, window=sliding_window, softcap=softcap,
                                        sinks=s_aux), None
    for observer in OBSERVERS:
        observer(module, query, key, value, scale)
    key, value = (x.dense() if isinstance(x, KVHandle) else x for x in (key, value))
    out = dense_attention(query, key, value, scale=scale, causal=causal, softcap=softcap, sinks=s_aux,
                          **mask_arguments(attention_mask, sliding_window))
    if dropout > 0 and module.training:
        raise ValueError("attention 'tersekv' has no dropout: set attention_dropout=0, or train with 'sdpa'")
    return out, None


def mask_arguments(mask, sliding_window):
    """Window, padding or tensor of a mask, for dense_attention."""
    if isinstance(mask, TerseMask):
        if mask.kind == "dense":
            return {"mask": mask.tensor}
        return {"window": mask.window, "padding": mask.padding}
    if isinstance(mask, torch.Tensor) and mask.ndim == 4:
        return {"mask": mask}
    if mask is not None:
        raise ValueError(f"attention 'tersekv' got a mask of {type(mask).__name__} with shape "
                         f"{list(getattr(mask, 'shape', []))}: 4-D masks and those of its own are taken")
    return {"window": sliding_window}


def register():
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, make_mask)  # unregistered, masks would be dropped without a word


register()
