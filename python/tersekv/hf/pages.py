# SPDX-License-Identifier: Apache-2.0
"""Page ids, lengths and slots of a batch on a CUDA device, common to all layers of a TerseCache.

A sequence is a list of page ids; forks share pages and copy the one that both would write. Lengths and slots of the next
steps are made on the host, for many steps at once, and sent in one copy: a decode step only moves addresses.
"""
import torch

from tersekv import _core

MOST_QUERIES = 16  # of a launch
AHEAD = 64         # decode steps whose slots and lengths are sent at once
SHARE = 64         # memory grows by 1 / SHARE and by what is asked for


class Part:
    """Queries [first, first + n) of a step for the rows `batch` (a slice), in blocks of `size`: one launch."""

    def __init__(self, pages, rows, first, blocks, size, lengths, table, width):
        self.pages, self.rows, self.first, self.blocks, self.size = pages, rows, first, blocks, size
        self.lengths, self.table, self.width = lengths, table, width
        self.natives = {}

    def ready(self, core, heads, window, stream):
        """Planned for this window; layers of the same shape share it."""
        key = (heads, core.kv_heads, core.d, core.spec, window)
        if key not in self.natives:
            native = _core.DeviceStep()
            native.batch, native.q_len = self.batch, self.size
            native.lengths, native.table, native.table_stride = self.lengths, self.table, self.width
            space = self.pages.workspace((*key, self.batch, self.size), core, heads)
            native.workspace = space.memory.data_ptr()
            self.natives[key] = native, space
        native, space = self.natives[key]
        if space.planned_for is not self:  # other parts of a step may have the same shape
            core.native.plan(native, heads, window, stream)
            space.planned_for = self
        return native

    @property
    def batch(self):
        return self.blocks if self.blocks > 1 else self.rows.stop - self.rows.start

    def take(self, x):
        """[batch, heads, queries, d] -> of this launch: [rows or blocks, heads, size, d]."""
        x = x[self.rows, :, self.first:self.first + self.blocks * self.size]
        if self.blocks == 1:
            return x
        b, h, t, c = x.stride()
        return x.as_strided((self.blocks, x.shape[1], self.size, x.shape[3]), (self.size * t, h, t, c))


class Workspace:
    def __init__(self, memory):
        self.memory, self.planned_for = memory, None


class Step:
    """One forward pass: n slots of every row. native.slots: [batch, n] on the device."""

    def __init__(self, pages, rows, key, n, slots, lengths, counts):
        self.pages, self.rows, self.key, self.n, self.batch = pages, rows, key, n, len(rows)
        self.native = _core.DeviceStep()
        self.native.slots = slots
        self.lengths, self.counts, self.before = lengths, counts, {}
        self.keep, self._parts = [], None

    def parts(self):
        if self._parts is None:
            self._parts = self._cut()
        return self._parts

    def _cut(self):
        pages, n, batch = self.pages, self.n, self.batch
        table, width = pages.table_of(self.rows)
        if n <= MOST_QUERIES:
            return [Part(pages, slice(0, batch), 0, 1, n, self.lengths, table.data_ptr(), width)]
        parts, rest, blocks = [], n % MOST_QUERIES, n // MOST_QUERIES
        for b, row in enumerate(self.rows):  # every block of 16 queries is a sequence that ends with it
            end = pages.lengths[row]
            ends = [end - MOST_QUERIES * (blocks - 1 - i) for i in range(blocks)]
            first = [max(end - MOST_QUERIES * blocks, 0)] if rest else []
            sent = torch.tensor([max(e, 0) for e in first + ends], dtype=torch.int32).to(pages.device)
            ids = table[b:b + 1].expand(len(sent), width).contiguous()
            self.keep += [sent, ids]
            at = 4 * len(first)
            if rest:
                parts.append(Part(pages, slice(b, b + 1), 0, 1, rest, sent.data_ptr(), ids.data_ptr(), width))
            parts.append(Part(pages, slice(b, b + 1), rest, blocks, MOST_QUERIES, sent.data_ptr() + at, ids.data_ptr(),
                              width))
        return parts


class Pages:
    def __init__(self, device, page_tokens=64):
        self.device, self.page_tokens = device, page_tokens
        self.cores, self.count = [], 0     # layers; pages of each
        self.ids, self.lengths = {}, {}    # by sequence
        self.free, self.refs = [], {}
        self.step = None                   # of the running pass
        self.static = None                 # DecodeGraph's, while it is captured
        self.version = 0                   # of who has which page
        self.pinned = 0                    # graphs that hold addresses of the pages
        self.not_finite = torch.zeros(1, dtype=torch.int32, device=device)
        self._spaces, self._table, self._ahead = {}, None, None

    # -- a step --------------------------------------------------------------------------------------------------------
    def step_for(self, rows, start, n, valid):
        """The step of these rows and slots [start, start + n); its pages are there when it returns."""
        if self.static is not None:
            return self.static
        key = (tuple(rows), start, n)
        if self.step is not None and self.step.key == key:
            return self.step
        counts = [n] * len(rows) if valid is None else [count for _, count in valid.ranges]
        before = {row: self.lengths.setdefault(row, 0) for row in rows}
        self.reserve(rows, counts)
        if n == 1 and valid is None or n == 1 and all(count == 1 for count in counts):
            slots, lengths = self._decode(key[0])
        else:
            slots, lengths = self._send(rows, n, counts, valid)
        for row, count in zip(rows, counts):
            self.lengths[row] += count
        step = self.step = Step(self, key[0], key, n, slots.data_ptr(), lengths.data_ptr(), counts)
        step.before, step.keep = before, [slots, lengths]
        return step

    def _slots(self, row, low, high):
        """Device slots of tokens [low, high) of a sequence."""
        t, ids = torch.arange(low, high), torch.tensor(self.ids.get(row, []), dtype=torch.int64)
        return ids[t // self.page_tokens] * self.page_tokens + t % self.page_tokens

    def _decode(self, rows):
        """(slots [batch], lengths [batch]) of one new token a row, made for AHEAD steps at once."""
        now = [self.lengths[row] for row in rows]
        ahead = self._ahead
        if ahead is not None and ahead[0] == rows and now[0] - ahead[1][0] < ahead[4]:
            done = now[0] - ahead[1][0]
            if done >= 0 and all(b - a == done for a, b in zip(ahead[1], now)):
                return ahead[2][done], ahead[3][done]
        size = self.page_tokens
        steps = min([AHEAD] + [len(self.ids[row]) * size - length for row, length in zip(rows, now)])
        slots = torch.stack([self._slots(row, length, length + steps) for row, length in zip(rows, now)], dim=1)
        lengths = torch.tensor(now, dtype=torch.int32)[None] + torch.arange(1, steps + 1, dtype=torch.int32)[:, None]
        self._ahead = (rows, now, slots.contiguous().to(self.device), lengths.contiguous().to(self.device), steps)
        return self._ahead[2][0], self._ahead[3][0]

    def _send(self, rows, n, counts, valid):
        slots = torch.full((len(rows), n), -1, dtype=torch.int64)
        for b, (row, count) in enumerate(zip(rows, counts)):
            first = 0 if valid is None else valid.ranges[b][0]
            slots[b, first:first + count] = self._slots(row, self.lengths[row], self.lengths[row] + count)
        lengths = torch.tensor([self.lengths[row] + count for row, count in zip(rows, counts)], dtype=torch.int32)
        return slots.to(self.device), lengths.to(self.device)

    def table_of(self, rows):
        """([batch, width] page ids, width) on the device; kept until pages or rows change."""
        if self._table is None or self._table[0] != rows:
            width = max([len(self.ids.get(row, [])) for row in rows] + [1])
            table = torch.zeros(len(rows), width, dtype=torch.int32)
            for b, row in enumerate(rows):
                ids = self.ids.get(row, [])
                table[b, :len(ids)] = torch.tensor(ids, dtype=torch.int32)
            self._table = (rows, table.to(self.device), width)
        return self._table[1], self._table[2]

    def workspace(self, key, core, heads):
        """Kept a shape; the parts of steps plan in it by turns."""
        if key not in self._spaces:
            if len(self._spaces) >= 16:  # shapes of chunks that have passed
                self._spaces.clear()
            size = core.native.workspace_bytes(key[-2], heads, key[-1])
            self._spaces[key] = Workspace(torch.empty(max(size, 16), dtype=torch.uint8, device=self.device))
        return self._spaces[key]

    # -- memory --------------------------------------------------------------------------------------------------------
    def reserve(self, rows, counts):
        """Pages for `counts` more tokens of these rows; the page that will be written belongs to its row alone."""
        size, wanted, copies = self.page_tokens, [], []
        for row, count in zip(rows, counts):
            ids, length = self.ids.setdefault(row, []), self.lengths.setdefault(row, 0)
            if count > 0 and length % size and self.refs[ids[length // size]] > 1:
                copies.append(row)
            wanted.append(-(-(length + count) // size) - len(ids))
        need = sum(max(w, 0) for w in wanted) + len(copies)
        if need == 0:
            return
        if need > len(self.free):
            self._grow(need - len(self.free))
        source, target = [], []
        for row in copies:
            ids, at = self.ids[row], self.lengths[row] // size
            if self.refs[ids[at]] > 1:  # an earlier row of this loop may have left it to this one
                source.append(ids[at]), target.append(self._take())
                self.refs[ids[at]] -= 1
                ids[at] = target[-1]
        if source:
            pair = [torch.tensor(x, device=self.device) for x in (source, target)]
            for core in self.cores:
                core.copy_pages(*pair)
        for row, count in zip(rows, wanted):
            self.ids[row].extend(self._take() for _ in range(count))
        self._table = self._ahead = None
        self.version += 1

    def _take(self):
        page = self.free.pop()
        self.refs[page] = 1
        return page

    def _grow(self, more):
        if self.pinned:
            raise RuntimeError(f"the cache needs {more} more pages while a DecodeGraph holds their addresses: make the "
                               "graph with a larger max_new_tokens, or delete it first")
        count = self.count + more + self.count // SHARE
        for core in self.cores:
            core.grow(count)
        self.free.extend(reversed(range(self.count, count)))
        self.count = count

    def join(self, core):
        """A layer that comes later gets the pages that others have."""
        if self.count:
            core.grow(self.count)

    def slots_of(self, sequences, low, high, stored):
        """[batch, high - low] device slots of time slots; -1 where nothing is stored."""
        out = torch.full((len(sequences), high - low), -1, dtype=torch.int64)
        for b, row in enumerate(sequences):
            if stored is None:
                out[b] = self._slots(row, low, high)
                continue
            here = stored[b, low:high]
            first = int(stored[b, :low].sum())
            out[b][here] = self._slots(row, first, first + int(here.sum()))
        return out.to(self.device)

    # -- sequences -----------------------------------------------------------------------------------------------------
    def settle(self):
        if self.step is not None:
            self.step.before = {}

    def undo(self):
        """Lengths as before the pass; its pages stay for the next one."""
        if self.step is not None:
            self.lengths.update(self.step.before)
            self.step = None

    def fork(self, source, target):
        if target in self.ids or source not in self.ids:  # every layer asks; the first does it
            return
        self.ids[target], self.lengths[target] = list(self.ids[source]), self.lengths[source]
        for page in self.ids[target]:
            self.refs[page] += 1
        self._forget()

    def remove(self, sequence):
        for page in self.ids.pop(sequence, []):
            self._drop(page)
        self.lengths.pop(sequence, None)
        self._forget()

    def crop(self, sequence, tokens):
        ids, keep = self.ids.get(sequence, []), -(-tokens // self.page_tokens)
        for page in ids[keep:]:
            self._drop(page)
        del ids[keep:]
        self.lengths[sequence] = min(tokens, self.lengths.get(sequence, 0))
        self._forget()

    def _drop(self, page):
        self.refs[page] -= 1
        if self.refs[page] == 0:
            self.free.append(page)

    def _forget(self):
        self.step = self._table = self._ahead = None
        self.version += 1

    # -- bytes ---------------------------------------------------------------------------------------------------------
    def tokens(self):
        return sum(self.lengths.values())

    def pages_used(self):
        size = self.page_tokens
        return len({page for row, ids in self.ids.items() for page in ids[:-(-self.lengths[row] // size)]})

    def bytes_reserved(self):
        return sum(core.memory.numel() for core in self.cores)

    def bytes_scratch(self):
        return sum(space.memory.numel() for space in self._spaces.values())
