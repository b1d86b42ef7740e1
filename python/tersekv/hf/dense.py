# SPDX-License-Identifier: Apache-2.0
"""Attention over plain tensors: a prompt's own keys and values, models without a cache, fallbacks. Why not the core:
docs/decisions/0011-prompts-in-torch.md."""
import torch
import torch.nn.functional as F

BLOCK = 512  # queries at a time: no [queries, keys] matrix of a long prompt


def allowed(q_first, q_count, kv_length, q_length, causal, window, padding, device):
    """[batch or 1, 1, q_count, kv_length] bool, or None: everything. The last query stands at the last key."""
    allowed = None
    if causal or window:
        at = torch.arange(q_first, q_first + q_count, device=device)[:, None] + (kv_length - q_length)
        key = torch.arange(kv_length, device=device)[None]
        allowed = key <= at if causal else torch.ones_like(key <= at)
        if window:
            allowed = allowed & (key > at - window)
        allowed = allowed[None, None]
    if padding is not None:
        padded = padding.bool()[:, None, None]
        allowed = padded if allowed is None else allowed & padded
    return allowed


def _attend(q, k, v, mask, scale, softcap, sinks):
    """mask: [.., queries, keys] bool (True: seen) or additive, or None."""
    dead = None
    if mask is not None and mask.dtype == torch.bool:
        dead = ~mask.any(-1, keepdim=True)  # a padding query sees nothing: its output is 0
        mask = mask | dead
        if not dead.any():
            dead = None
    if softcap is None and sinks is None:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
    else:
        batch, heads, length, _ = q.shape
        groups = heads // k.shape[1]
        scores = torch.matmul(q.float().reshape(batch, k.shape[1], groups * length, -1), k.float().transpose(-1, -2))
        scores = scores.view(batch, heads, length, -1) * scale
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask.float()
        if sinks is not None:
            column = sinks.float().view(1, -1, 1, 1).expand(batch, heads, length, 1)
            scores = torch.cat([scores, column], dim=-1)
        weights = torch.softmax(scores, dim=-1)
        if sinks is not None:
            weights = weights[..., :-1]
        out = torch.matmul(weights.reshape(batch, k.shape[1], groups * length, -1), v.float())
        out = out.view(batch, heads, length, -1).to(q.dtype)
    return out if dead is None else out.masked_fill(dead, 0)


def dense_attention(q, k, v, *, scale, causal=True, window=None, padding=None, mask=None, softcap=None, sinks=None):
    """q: [batch, heads, queries, d]; k, v: [batch, kv_heads, keys, d]; -> [batch, queries, heads, d] in q's dtype.

    mask: a 4-D tensor (bool or additive), which then says everything; else causal, window (a query sees the `window`
    newest keys, its own included) and padding [batch, keys]. sinks: [heads] logits that join the softmax's sum.
    """
    k, v = k.to(q.dtype), v.to(q.dtype)
    q_length, kv_length = q.shape[2], k.shape[2]
    if mask is None and q_length == kv_length and causal and padding is None and softcap is None and sinks is None and \
            (not window or q_length <= window):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=q_length > 1, scale=scale,
                                             enable_gqa=q.shape[1] != k.shape[1])
        return out.transpose(1, 2).contiguous()
    outs = []
    for first in range(0, q_length, BLOCK):
        count = min(BLOCK, q_length - first)
        low, high = 0, kv_length
        if mask is not None:
            block = mask[..., first:first + count, :kv_length]
        else:
            if causal:
                high = kv_length - q_length + first + count
            if window:
                low = max(0, kv_length - q_length + first - window + 1)
            block = allowed(first, count, kv_length, q_length, causal, window, padding, q.device)
            block = None if block is None else block[..., low:high]
        outs.append(_attend(q[:, :, first:first + count], k[:, :, low:high], v[:, :, low:high], block, scale, softcap,
                            sinks))
    return torch.cat(outs, dim=2).transpose(1, 2).contiguous()
