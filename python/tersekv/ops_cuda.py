# SPDX-License-Identifier: Apache-2.0
"""The operators of ops.py on CUDA: the kernels of the packed cache code and decode, torch moves bits between their pages
and canonical records. Nothing is copied to the host and nothing waits for the device, so graphs can capture them after a
first call. A row that is not finite decodes to its mean; the CPU refuses it.
"""
import atexit
import functools

import torch

from tersekv import _core
from tersekv.hf.device import describe, device_spec

ROWS = 1 << 15  # at a time: bits are spread over bytes meanwhile
BLOCK = 16


class DeviceRows:
    """One codec on one device."""

    def __init__(self, spec, side, head_dim, layer, kv_head, mean, scale, device):
        if _core.spec_is_raw(spec):
            raise ValueError(f"'{spec}' stores raw values: on CUDA use x.to(torch.float16)")
        self.side, self.d, self.head = side, head_dim, kv_head
        self.native = _core.DeviceLayer(device_spec(spec), head_dim, kv_head + 1, layer)
        self.bits = bits = self.native.bits(side)
        self.block_bytes, self.codes_at, self.scales_at = self.native.block_offsets(side)
        places = torch.tensor(self.native.bit_places(side), dtype=torch.int64)
        self.bytes_of, self.shifts = (places // 8).to(device), (places % 8).to(torch.uint8).to(device)
        self.bit_at = places.argsort().to(device)  # of a block's bits: which bit of which code
        stored = torch.tensor(_core.device_stored_codes(bits), dtype=torch.int64)
        self.stored = stored.to(torch.uint8).to(device)
        self.canonical = torch.zeros(1 << bits, dtype=torch.uint8)
        self.canonical[stored] = torch.arange(1 << bits).to(torch.uint8)
        if bits == 8:
            self.canonical[0] = 0  # a level that no code has
        self.canonical = self.canonical.to(device)
        self.ones = torch.arange(8, dtype=torch.uint8, device=device)
        self.statistics = [None if not len(x) else torch.tensor(x, dtype=torch.float32, device=device).expand(
            kv_head + 1, head_dim).contiguous() for x in (mean, scale, [1 / s for s in scale])]
        at = [0 if x is None else x.data_ptr() for x in self.statistics]
        self.native.set_stats(*(at if side == "k" else [0, 0, 0]), *(at if side == "v" else [0, 0, 0]))

    def pages(self, n, device):
        count = -(-n // self.native.page_tokens)
        return torch.zeros(count * self.native.page_bytes, dtype=torch.uint8, device=device)

    def blocks(self, pages):
        """[blocks of 16 tokens, bytes] of this head, of pages (a view)."""
        per = self.native.page_tokens // BLOCK
        return pages.view(-1, self.head + 1, per, self.block_bytes)[:, self.head]

    def spread(self, values, bits):
        return (values[..., None] >> self.ones[:bits]) & 1

    def gather(self, bits):
        """[..., 8] bits -> bytes."""
        return (bits << self.ones).sum(-1, dtype=torch.int32).to(torch.uint8)

    def rows(self, x):
        """As [1, heads, n, d]: every head of the pool reads the same rows."""
        return x[None, None].expand(1, self.head + 1, *x.shape)


def _stream(device):
    return torch.cuda.current_stream(device).cuda_stream


@functools.lru_cache(maxsize=64)
def device_rows(spec, side, head_dim, layer, kv_head, mean, scale, device):
    return DeviceRows(spec, side, head_dim, layer, kv_head, mean, scale, device)


atexit.register(device_rows.cache_clear)


def compress(of, x):
    """[n, d] -> (packed [n, code bytes], scales [n])"""
    n, device, d = x.shape[0], x.device, of.d
    pages, slots = of.pages(n, device), torch.arange(n, device=device)
    of.native.set_pages(pages.data_ptr())
    rows = describe(of.rows(x))
    of.native.append(rows, rows, slots.data_ptr(), n, 0, _stream(device))
    blocks = of.blocks(pages)
    codes = blocks[..., of.codes_at:of.codes_at + 2 * d * of.bits]
    bits = (codes[..., of.bytes_of] >> of.shifts) & 1
    stored = (bits.view(-1, d, of.bits) << of.ones[:of.bits]).sum(-1, dtype=torch.int32)[:n]
    canonical = of.canonical[stored]
    packed = canonical if of.bits == 8 else of.gather(of.spread(canonical, of.bits).reshape(n, -1, 8))
    scales = blocks[..., of.scales_at:of.scales_at + 2 * BLOCK].contiguous().view(torch.bfloat16).reshape(-1)[:n]
    return packed, scales.clone()


def decompress(of, packed, scales, dtype):
    n, device, d = packed.shape[0], packed.device, of.d
    pages, slots = of.pages(n, device), torch.arange(n, device=device)
    blocks = of.blocks(pages)
    shape, tokens = blocks.shape[:2], blocks.shape[0] * blocks.shape[1] * BLOCK
    canonical = packed if of.bits == 8 else (
        of.spread(packed, 8).view(n, d, of.bits) << of.ones[:of.bits]).sum(-1, dtype=torch.int32)
    stored = torch.zeros(tokens, d, dtype=torch.uint8, device=device)
    stored[:n] = of.stored[canonical.int()]
    bits = of.spread(stored, of.bits).view(*shape, -1)[..., of.bit_at]
    blocks[..., of.codes_at:of.codes_at + 2 * d * of.bits] = of.gather(bits.view(*shape, -1, 8))
    whole = torch.zeros(tokens, dtype=torch.bfloat16, device=device)
    whole[:n] = scales
    blocks[..., of.scales_at:of.scales_at + 2 * BLOCK] = whole.view(*shape, BLOCK).view(torch.uint8)
    of.native.set_pages(pages.data_ptr())
    out, other = (torch.empty(1, of.head + 1, n, d, dtype=dtype, device=device) for _ in "kv")
    of.native.decompress(*(describe(x) for x in ((out, other) if of.side == "k" else (other, out))), slots.data_ptr(), n,
                         _stream(device))
    return out[0, of.head]
