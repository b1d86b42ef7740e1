# SPDX-License-Identifier: Apache-2.0
"""New tokens behind a packed history on a device, where no kernel takes them: long chunks, widths without a kernel, padding
behind a chunk's tokens. The history is decoded a tile at a time into scratch of a constant size, raw rows and the chunk's
own tokens are parts of the same softmax, all joined by lse. No decoded copy of the history exists at any time."""
import torch

from tersekv.hf.parts import Joined, part

SCRATCH_BYTES = 32 << 20  # K and V of a tile, all rows together
LEAST_TILE = 64


def attend_chunk(core, step, pending, query, ranges, raw, scale, window, softcap, sinks):
    """query: [batch, heads, n, d] -> [batch, n, heads, d]. The step has packed the chunk; its raw rows are those before it,
    unless pending.appended. ranges: by row (first, count) of the chunk's tokens, or None: all n. raw: queries see the chunk
    and what was raw before it as it came, else each sees what decoding at its place would. Padding queries give 0."""
    n, lengths = query.shape[2], [core.pages.lengths[row] for row in step.rows]
    ranges = [(0, n)] * len(lengths) if ranges is None else ranges
    before = [length - count for length, (_, count) in zip(lengths, ranges)]
    table, _ = step.table()
    chunk = Chunk(core, raw, pending.appended, scale, window, softcap)
    if len(set(before)) == 1 and all(span == (0, n) for span in ranges):
        return chunk.attend(step.rows, table, pending.k, pending.v, query, before[0], sinks).transpose(1, 2).contiguous()
    out = torch.zeros(query.shape[0], n, query.shape[1], pending.v.shape[3], dtype=query.dtype, device=query.device)
    for b, (first, count) in enumerate(ranges):
        if count:
            one, own = slice(b, b + 1), slice(first, first + count)
            out[one, own] = chunk.attend(step.rows[one], table[one], pending.k[one, :, own], pending.v[one, :, own],
                                         query[one, :, own], before[b], sinks).transpose(1, 2)
    return out


class Chunk:
    def __init__(self, core, raw, appended, scale, window, softcap):
        self.core, self.raw, self.appended, self.window = core, raw, appended, window
        self.options = dict(scale=scale, softcap=softcap)
        shape = None if core.rows is None else core.rows.shape
        self.sink, self.newest = (0, 0) if shape is None else (shape.sink, shape.window)
        self.ring = 0 if shape is None else shape.ring

    def attend(self, rows, table, k, v, q, before, sinks):
        """Rows that have the same number of tokens before the chunk and no padding in it."""
        n, joined = q.shape[2], Joined()
        at = torch.arange(before, before + n, device=q.device)
        begin = min(max(self.sink, before - self.newest, before + n - self.ring if self.appended else 0), before)
        if self.raw or self.newest or before < self.sink:
            joined.add(*part(q, k, v, causal=True, mask=self._mask(at, at, n > (self.window or n)), **self.options))
        if self.core.rows is not None and before:
            held = torch.cat([torch.arange(min(self.sink, before)), torch.arange(begin, before)]).to(q.device)
            keys, values = self.core.rows.gather(rows, held)
            joined.add(*part(q, keys, values, mask=self._mask(at, held), **self.options))
        end = begin if self.raw and self.core.rows is not None else before if self.raw else before + n - self.newest
        low = max(self.sink, before - self.window + 1) if self.window else self.sink
        if low < end:
            self._packed(joined, table, q, at, low, end)
        return joined.done(q.dtype, sinks)

    def _mask(self, at, keys, needed=True):
        """[queries, keys] of raw keys at these positions, or None: all that causality leaves."""
        if not needed and (self.raw or self.newest >= len(at)):
            return None
        seen = torch.ones(len(at), len(keys), dtype=torch.bool, device=at.device)
        if not self.raw:
            seen = seen & ((keys[None] < self.sink) | (keys[None] > at[:, None] - self.newest))
        if self.window:
            seen = seen & (keys[None] > at[:, None] - self.window)
        elif self.raw:
            return None
        return seen

    def _packed(self, joined, table, q, at, low, end):
        tile = Tile(self.core, q.shape[0], q.dtype, end - low)
        first, last = int(at[0]) if self.window or not self.raw else 0, at.numel() - 1
        for begin in range(low, end, tile.tokens):
            stop = min(begin + tile.tokens, end)
            keys, values = tile.read(table, begin - self.sink, stop - self.sink)
            mask, held = None, torch.arange(begin, stop, device=q.device)[None]
            if not self.raw and stop - 1 > first - self.newest:  # the first queries do not see all of it
                mask = held <= at[:, None] - self.newest
            if self.window and begin <= first + last - self.window:  # nor the last ones
                inside = held > at[:, None] - self.window
                mask = inside if mask is None else mask & inside
            joined.add(*part(q, keys, values, mask=mask, **self.options))


class Tile:
    """Scratch of one call: decoded keys and values of `tokens` tokens of every row, as many as SCRATCH_BYTES take."""

    def __init__(self, core, batch, dtype, most):
        a_token = 2 * batch * core.kv_heads * core.d * dtype.itemsize
        self.core, self.tokens = core, min(max(SCRATCH_BYTES // a_token // LEAST_TILE, 1) * LEAST_TILE, most)
        self.memory = torch.empty(2, core.kv_heads, batch * self.tokens, core.d, dtype=dtype, device=core.pages.device)

    def read(self, table, low, high):
        """(keys, values) of packed tokens [low, high): [batch, kv_heads, high - low, d], valid until the next read."""
        size, at = self.core.pages.page_tokens, torch.arange(low, high, device=table.device)
        slots = table[:, at // size].long() * size + at % size
        keys, values = (x[None, :, :slots.numel()] for x in self.memory)
        self.core.decompress(keys, values, slots)
        return tuple(x[0].unflatten(1, slots.shape).transpose(0, 1) for x in (keys, values))
