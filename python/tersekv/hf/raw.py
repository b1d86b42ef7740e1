# SPDX-License-Identifier: Apache-2.0
"""Raw sinks and the raw window of packed layers on a device.

Every token is packed when it comes and, beside that, the first `sink` tokens and the newest ones of each sequence lie raw in
rows of its own, the newest in a ring. A query sees raw the sinks and the `window` newest tokens before it, its own included,
and packed what lies between; the two join by lse. Packed token i is the one at position sink + i.
"""
from dataclasses import dataclass

import torch

from tersekv import _core

SLACK = 28  # more tokens in the ring than the window: queries of one launch, drafts that are cropped off again


@dataclass(frozen=True)
class RawShape:
    sink: int
    window: int
    rows: int  # of a sequence: sinks, then the ring; a multiple of 16

    @property
    def ring(self):
        return self.rows - self.sink if self.window else 0

    def row_of(self, position):
        """Of a token, among its sequence's rows; position: an int or a tensor."""
        if torch.is_tensor(position):
            return torch.where(position < self.sink, position, self.sink + (position - self.sink) % max(self.ring, 1))
        return position if position < self.sink else self.sink + (position - self.sink) % max(self.ring, 1)

    def positions(self, lengths):
        """[batch, rows]: the position that each row holds at these lengths [batch]; -1: none."""
        row, last = torch.arange(self.rows, device=lengths.device)[None], lengths[:, None] - 1
        at = torch.where(row <= last, row, -1)
        if not self.ring:
            return torch.where(row < self.sink, at, -1)
        newest = last - torch.remainder(last - row, self.ring)
        return torch.where(row < self.sink, at, torch.where(newest >= self.sink, newest, -1))


def raw_shape(spec):
    """Of a packed spec, or None."""
    sink, window = _core.spec_raw_tokens(spec)
    if sink + window == 0:
        return None
    return RawShape(sink, window, -(-(sink + (window + SLACK if window else 0)) // 16) * 16)


class Places:
    """Which sequence has which rows in every layer's ring tensor; the rows of a batch lie together, in order."""

    def __init__(self, pages, shape):
        self.pages, self.shape = pages, shape
        self.place, self.low, self.capacity = {}, {}, 0  # low: oldest position that the ring still has, by sequence

    def open(self, rows):
        """The first place of these rows."""
        have = [self.place.get(row) for row in rows]
        if have[0] is not None and have == list(range(have[0], have[0] + len(rows))):
            return have[0]
        owner, mine = {place: row for row, place in self.place.items()}, set(rows)
        base = next((low for low in range(self.capacity - len(rows) + 1)
                     if all(owner.get(low + i, rows[0]) in mine for i in range(len(rows)))), None)
        if base is None:
            base = max(owner, default=-1) + 1
            self._grow(base + len(rows))
        moves = [(old, base + i) for i, old in enumerate(have) if old not in (None, base + i)]
        self._move(moves)
        for i, row in enumerate(rows):
            self.place[row] = base + i
            self.low.setdefault(row, self.shape.sink)
        return base

    def _grow(self, capacity):
        if capacity <= self.capacity:
            return
        if self.pages.pinned:
            raise RuntimeError("the cache needs raw rows for more sequences while a DecodeGraph holds their addresses: close "
                               "it first")
        self.capacity = capacity
        for core in self.pages.cores:
            core.grow_ring(capacity)

    def _move(self, moves):
        if moves:
            source, target = (torch.tensor(x, device=self.pages.device) for x in zip(*moves))
            for core in self.pages.cores:
                core.move_rows(source, target)

    def fork(self, source, target):
        if source in self.place:
            place = next((p for p in range(self.capacity) if p not in self.place.values()), self.capacity)
            self._grow(place + 1)
            self.place[target], self.low[target] = place, self.low[source]
            self._move([(self.place[source], place)])

    def remove(self, sequence):
        self.place.pop(sequence, None)
        self.low.pop(sequence, None)

    def wrote(self, row, length):
        self.low[row] = max(self.low[row], length - self.shape.ring)

    def restore(self, sequence, length):
        """After a way back to this length: window tokens that the ring has lost are decoded into it again."""
        if sequence not in self.place or not self.shape.ring:
            return
        need = max(self.shape.sink, length - self.shape.window)
        lost = min(self.low[sequence], length)
        if lost > need:
            for core in self.pages.cores:
                core.refill(sequence, need, lost)
        self.low[sequence] = min(self.low[sequence], need)


class RawView:
    """What the layers with raw rows share of one step, or of a piece of it that ends `behind` slots before its end."""

    def __init__(self, step, shape, base, first=0, count=None):
        pages, batch = step.pages, step.batch
        count = step.n if count is None else count
        self.step, self.shape, self.base, self.n, self.batch = step, shape, base, count, batch
        self.lengths = step.lengths.long() - (step.n - first - count)  # [batch], of the piece's end
        at = step.positions()[:, first:first + count]                  # [batch, count], -1: padding
        rows = torch.arange(batch, device=at.device)[:, None] * shape.rows + shape.row_of(at) + (1 + base * shape.rows)
        kept = (at >= 0) & ((at < shape.sink) | (at >= self.lengths[:, None] - shape.ring))
        self.write = torch.where(kept, rows, 0).flatten()              # row 0 is nobody's
        self.packed = (self.lengths - (shape.sink + shape.window)).clamp_min(0).int()
        self.table, self.width = step.table()
        self._bias, self._part, self._slots = {}, None, None

    def slots(self):
        """[batch, n] of packed tokens; -1: none."""
        if self._slots is not None:
            return self._slots
        size, at = self.step.pages.page_tokens, self.step.positions() - self.shape.sink
        page = self.table.gather(1, (at.clamp_min(0) // size).long()).long()
        self._slots = torch.where(at >= 0, page * size + at % size, -1)
        return self._slots

    def part(self):
        from tersekv.hf.pages import Part
        if self._part is None:
            self._part = Part(self.step.pages, slice(0, self.batch), 0, 1, self.n, self.packed.data_ptr(),
                              self.table.data_ptr(), self.width)
        return self._part

    def bias(self, group, window, dtype):
        """([batch, 1, group * n, rows] additive, [batch, 1, group * n] True: sees no raw row, or None)."""
        key = group, window, dtype
        if key not in self._bias:
            shape, held = self.shape, self.shape.positions(self.lengths)[:, None]
            query = (self.lengths[:, None] - self.n + torch.arange(self.n, device=held.device))[..., None]
            seen = (held >= 0) & (held <= query) & ((held < shape.sink) | (held > query - shape.window))
            if window:
                seen = seen & (held > query - window)
            blind = ~seen.any(-1, keepdim=True)
            seen = seen | (blind & (torch.arange(shape.rows, device=held.device) == 0))
            seen, blind = (x[:, None].expand(-1, group, -1, -1).flatten(1, 2)[:, None] for x in (seen, blind))
            bias = torch.zeros(seen.shape, dtype=dtype, device=held.device).masked_fill_(~seen, float("-inf"))
            self._bias[key] = bias, blind[..., 0] if shape.window == 0 else None
        return self._bias[key]
