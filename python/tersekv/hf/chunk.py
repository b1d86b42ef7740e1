# SPDX-License-Identifier: Apache-2.0
"""New tokens behind a packed history on a device, where no kernel takes them: long chunks, widths without a kernel. The
history is decoded a tile at a time into scratch of a constant size and joined by lse; no decoded copy of it exists."""
import torch

from tersekv.hf.parts import Joined, part

SCRATCH_BYTES = 32 << 20  # K and V of a tile, all rows together
LEAST_TILE = 64


def attend_chunk(core, step, pending, query, ranges, raw, scale, window, softcap, sinks):
    """query: [batch, heads, n, d] -> [batch, n, heads, d]. ranges: by row (first, count) of the chunk's tokens, or None:
    all n. raw: the chunk's own tokens are seen as they came, else as the step packed them. Padding queries give 0."""
    n, lengths = query.shape[2], [core.pages.lengths[row] for row in step.rows]
    ranges = [(0, n)] * len(lengths) if ranges is None else ranges
    before = [length - count for length, (_, count) in zip(lengths, ranges)]
    options = dict(raw=raw, scale=scale, window=window, softcap=softcap, sinks=sinks)
    table, _ = core.pages.table_of(step.rows)
    if len(set(before)) == 1 and all(span == (0, n) for span in ranges):
        return _rows(core, table, pending.k, pending.v, query, before[0], **options).transpose(1, 2).contiguous()
    out = torch.zeros(query.shape[0], n, query.shape[1], pending.v.shape[3], dtype=query.dtype, device=query.device)
    for b, (first, count) in enumerate(ranges):
        if count:
            one, own = slice(b, b + 1), slice(first, first + count)
            part_out = _rows(core, table[one], pending.k[one, :, own], pending.v[one, :, own], query[one, :, own], before[b],
                             **options)
            out[one, own] = part_out.transpose(1, 2)
    return out


def _rows(core, table, k, v, q, before, raw, scale, window, softcap, sinks):
    """Rows that have the same number of tokens before the chunk and no padding in it."""
    n = q.shape[2]
    if not raw:
        k, v = Tile(core, q.shape[0], q.dtype, n, n).read(table, before, before + n)
    mask = None
    if window and n > window:
        at = torch.arange(n, device=q.device)
        mask = at[None] > at[:, None] - window
    joined = Joined(*part(q, k, v, scale=scale, causal=True, mask=mask, softcap=softcap))
    low = max(before - window + 1, 0) if window else 0
    if low < before:
        tile = Tile(core, q.shape[0], q.dtype, before - low)
        for begin in range(low, before, tile.tokens):
            end = min(begin + tile.tokens, before)
            keys, values = tile.read(table, begin, end)
            mask = None
            if window and begin <= before + n - 1 - window:  # the last queries do not see all of it
                mask = torch.arange(begin, end, device=q.device)[None] > (
                    torch.arange(before, before + n, device=q.device)[:, None] - window)
            joined.add(*part(q, keys, values, scale=scale, mask=mask, softcap=softcap))
    return joined.done(q.dtype, sinks)


class Tile:
    """Scratch of one call: decoded keys and values of `tokens` tokens of every row, as many as SCRATCH_BYTES take, at least
    `least` and at most `most`."""

    def __init__(self, core, batch, dtype, most, least=LEAST_TILE):
        a_token = 2 * batch * core.kv_heads * core.d * dtype.itemsize
        self.core, self.tokens = core, min(max(SCRATCH_BYTES // a_token // LEAST_TILE * LEAST_TILE, least), most)
        self.memory = torch.empty(2, core.kv_heads, batch * self.tokens, core.d, dtype=dtype, device=core.pages.device)

    def read(self, table, low, high):
        """(keys, values) of tokens [low, high): [batch, kv_heads, high - low, d], valid until the next read."""
        size, at = self.core.pages.page_tokens, torch.arange(low, high, device=table.device)
        slots = table[:, at // size].long() * size + at % size
        keys, values = (x[None, :, :slots.numel()] for x in self.memory)
        self.core.decompress(keys, values, slots)
        return tuple(x[0].unflatten(1, slots.shape).transpose(0, 1) for x in (keys, values))
