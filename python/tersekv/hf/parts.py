# SPDX-License-Identifier: Apache-2.0
"""Attention over keys that come in parts: each part's output and the logarithm of its softmax's sum (lse), joined in fp32."""
import torch

SCORE_BYTES = 1 << 26  # of a block of scores, where no fused attention of torch's takes the part


def part(q, k, v, *, scale, causal=False, mask=None, bias=None, softcap=None):
    """q: [batch, heads, queries, d]; k, v: [batch, kv_heads, keys, d], possibly strided -> (out like q, lse [batch, heads,
    queries] fp32). causal: query i sees keys up to i. mask: [queries, keys] bool, True: seen; who sees nothing gets 0 and
    -inf. bias: [batch, 1, group * queries, keys] of 0 and -inf, heads of a group one after another; everyone sees a key.
    softcap and masks go through plain products in blocks, the rest through torch's fused attention."""
    k, v = k.to(q.dtype), v.to(q.dtype)
    batch, heads, n, d = q.shape
    group = heads // k.shape[1]
    if bias is not None and softcap is not None:
        mask = (bias == 0).unflatten(2, (group, n))[:, :, :1].squeeze(1)  # [batch, 1, queries, keys]
    if mask is not None or softcap is not None:
        return _plain(q, k, v, scale, causal, mask, softcap)
    if causal and group > 1:  # a query of every head of the group stands at the same place
        k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    elif group > 1:
        q = q.reshape(batch, k.shape[1], group * n, d)
    out, lse = _fused(q, k, v, scale, causal, None if bias is None else bias.expand(-1, k.shape[1], -1, -1))
    return out.reshape(batch, heads, n, d), lse.reshape(batch, heads, n)


def _fused(q, k, v, scale, causal, bias):
    ops = torch.ops.aten
    if q.device.type == "cpu":
        out, lse = ops._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, attn_mask=bias, scale=scale)
    elif q.dtype == torch.float32 or bias is not None:
        out, lse = ops._scaled_dot_product_efficient_attention(q, k, v, bias, True, 0.0, causal, scale=scale)[:2]
    else:
        out, lse = ops._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)[:2]
    return out, lse[..., :q.shape[2]].float()


def _plain(q, k, v, scale, causal, mask, softcap):
    batch, heads, n, d = q.shape
    kv_heads, keys = k.shape[1:3]
    group = heads // kv_heads
    size = max(SCORE_BYTES // (4 * batch * heads * keys), 1)
    kt, vf, outs, sums = k.float().transpose(-1, -2), v.float(), [], []
    for first in range(0, n, size):
        block = q[:, :, first:first + size].float()
        count = block.shape[2]
        scores = (block.reshape(batch, kv_heads, group * count, d) @ kt).view(batch, heads, count, keys) * scale
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        hidden = None if mask is None else ~mask[..., first:first + count, :]
        if causal:
            at = torch.arange(first, first + count, device=q.device)[:, None]
            later = torch.arange(keys, device=q.device)[None] > at
            hidden = later if hidden is None else hidden | later
        if hidden is not None:
            scores = scores.masked_fill(hidden, float("-inf"))
        lse = scores.logsumexp(-1)
        weights = torch.exp(scores - lse.clamp_min(-1e30)[..., None])
        out = weights.view(batch, kv_heads, group * count, keys) @ vf
        outs.append(out.view(batch, heads, count, d).to(q.dtype))
        sums.append(lse)
    return torch.cat(outs, dim=2), torch.cat(sums, dim=2)


class Joined:
    """The softmax over all parts that were added."""

    def __init__(self):
        self.out = self.lse = None

    def add(self, out, lse):
        if self.out is None:
            self.out, self.lse = out.to(torch.float32, copy=True), lse
            return
        both = torch.logaddexp(self.lse, lse)
        some = both.clamp_min(-1e30)  # who has seen nothing yet
        self.out = self.out.mul_((self.lse - some).exp_()[..., None]).addcmul_(out.float(), (lse - some).exp_()[..., None])
        self.lse = both

    def done(self, dtype, sinks=None):
        """sinks: [heads] logits that join the sum."""
        if sinks is not None:
            self.out.mul_(torch.sigmoid(self.lse - sinks.float().view(1, -1, 1))[..., None])
        return self.out.to(dtype)
