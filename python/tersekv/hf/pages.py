# SPDX-License-Identifier: Apache-2.0
"""Page ids, lengths and slots of a batch on a CUDA device, common to all layers of a TerseCache.

A sequence is a list of page ids; forks share pages and copy the one that both would write. Lengths and slots of the next
steps are made on the host, for many steps at once, and sent in one copy: a decode step only moves addresses.
"""
import torch

from tersekv import _core
from tersekv.hf.raw import Places, RawView

MOST_QUERIES = 16  # of a launch
AHEAD = 64         # decode steps whose slots and lengths are sent at once
SHARE = 64         # memory grows by 1 / SHARE and by what is asked for
TOGETHER = 8 << 20  # layers of fewer bytes share a tensor: torch rounds allocations of some MiB up by as much as a MiB


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
    """One forward pass: n slots of every row. On the device: slots and positions (-1: padding) [batch, n], lengths [batch]
    at its end."""

    def __init__(self, pages, rows, key, n, slots, lengths, counts, positions=None, table=None):
        self.pages, self.rows, self.key, self.n, self.batch = pages, rows, key, n, len(rows)
        self.native = _core.DeviceStep()
        self.slots, self.lengths, self._positions = slots, lengths, positions
        self.native.slots = slots.data_ptr()
        self.counts, self.before, self._table = counts, {}, table
        self.keep = []
        self.forget()

    def forget(self):
        """What was made of slots and lengths is made again when it is asked for."""
        self._parts, self._views = None, {}

    def positions(self):
        return self.lengths.long()[:, None] - 1 if self._positions is None else self._positions

    def table(self):
        """([batch, width] page ids, width)"""
        return self.pages.table_of(self.rows) if self._table is None else (self._table, self._table.shape[1])

    def view(self, piece=None):
        """For layers with raw rows: of the whole step, or of (first, count) slots of it."""
        if piece not in self._views:
            places = self.pages.places
            self._views[piece] = RawView(self, places.shape, places.open(self.rows), *(piece or ()))
        return self._views[piece]

    def reaches_pages(self, shape):
        """Whether a row is long enough for packed tokens to be seen; the host does not know it of a captured step."""
        return self.counts is None or max(self.pages.lengths[row] for row in self.rows) > shape.sink + shape.window

    def parts(self):
        if self._parts is None:
            self._parts = self._cut()
        return self._parts

    def _cut(self):
        pages, n, batch = self.pages, self.n, self.batch
        table, width = self.table()
        if n <= MOST_QUERIES:
            return [Part(pages, slice(0, batch), 0, 1, n, self.lengths.data_ptr(), table.data_ptr(), width)]
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
    def __init__(self, device, page_tokens=64, raw=None, layers=1):
        self.device, self.page_tokens = device, page_tokens
        self.layers, self._shared = layers, (0, [])  # how many are expected; (bytes of a part, parts that are left)
        self.places = None if raw is None else Places(self, raw)  # raw: RawShape of the packed layers
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
            slots, lengths, positions = *self._decode(key[0]), None
        else:
            slots, lengths, positions = self._send(rows, n, counts, valid)
        if self.places is not None:
            self.places.open(key[0])
        for row, count in zip(rows, counts):
            self.lengths[row] += count
            if self.places is not None:
                self.places.wrote(row, self.lengths[row])
        step = self.step = Step(self, key[0], key, n, slots, lengths, counts, positions)
        step.before = before
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
        slots, positions = (torch.full((len(rows), n), -1, dtype=torch.int64) for _ in range(2))
        for b, (row, count) in enumerate(zip(rows, counts)):
            first, length = 0 if valid is None else valid.ranges[b][0], self.lengths[row]
            slots[b, first:first + count] = self._slots(row, length, length + count)
            positions[b, first:first + count] = torch.arange(length, length + count)
        lengths = torch.tensor([self.lengths[row] + count for row, count in zip(rows, counts)], dtype=torch.int32)
        return slots.to(self.device), lengths.to(self.device), positions.to(self.device)

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
        count, self._shared = self.count + more + self.count // SHARE, (0, [])
        for core in self.cores:
            core.grow(count)
        self.free.extend(reversed(range(self.count, count)))
        self.count = count

    def memory_for(self, size):
        """Bytes for one layer; layers that follow with the same size get theirs of the same tensor."""
        if size > TOGETHER:
            return torch.empty(size, dtype=torch.uint8, device=self.device)
        if self._shared[0] != size or not self._shared[1]:
            without = sum(core.memory.numel() < size for core in self.cores) + max(self.layers - len(self.cores), 0)
            whole = torch.empty(max(without, 1), -(-size // 256) * 256, dtype=torch.uint8, device=self.device)
            self._shared = size, list(whole[:, :size])
        return self._shared[1].pop()

    def join(self, core):
        """A layer that comes later gets the pages and rows that others have."""
        if self.count:
            core.grow(self.count)
        if self.places is not None and self.places.capacity:
            core.grow_ring(self.places.capacity)

    def slots_of(self, sequences, low, high, stored, sink=0):
        """[batch, high - low] device slots of time slots; -1 where nothing is stored or a raw sink is."""
        out = torch.full((len(sequences), high - low), -1, dtype=torch.int64)
        for b, row in enumerate(sequences):
            at = self._positions(b, low, high, stored)
            packed = at >= sink
            if packed.any():
                first, last = int(at[packed].min()), int(at.max())
                out[b][packed] = self._slots(row, first - sink, last + 1 - sink)
        return out.to(self.device)

    @staticmethod
    def _positions(b, low, high, stored):
        """Of time slots [low, high) in batch row b; -1: padding."""
        if stored is None:
            return torch.arange(low, high)
        here = stored[b, :high]
        return torch.where(here, here.cumsum(0) - 1, -1)[low:high]

    def raw_places(self, row, b, low, high, stored, all_of_them):
        """(which of time slots [low, high), their rows in a ring tensor): what is seen raw, or all that the ring has."""
        shape, at, length = self.places.shape, self._positions(b, low, high, stored), self.lengths[row]
        newest = self.places.low[row] if all_of_them else max(self.places.low[row], length - shape.window)
        raw = (at >= 0) & ((at < shape.sink) | (at >= newest)) & (at < length)
        index = shape.row_of(at[raw]) + (1 + self.places.place[row] * shape.rows)
        return raw.nonzero().flatten().to(self.device), index.to(self.device)

    # -- sequences -----------------------------------------------------------------------------------------------------
    def settle(self):
        if self.step is not None:
            self.step.before = {}

    def undo(self):
        """Lengths as before the pass; its pages stay for the next one."""
        if self.step is not None:
            self.lengths.update(self.step.before)
            if self.places is not None:
                for row in self.step.before:
                    self.places.restore(row, self.lengths[row])
            self.step = None

    def fork(self, source, target):
        if target in self.ids or source not in self.ids:  # every layer asks; the first does it
            return
        self.ids[target], self.lengths[target] = list(self.ids[source]), self.lengths[source]
        for page in self.ids[target]:
            self.refs[page] += 1
        if self.places is not None:
            self.places.fork(source, target)
        self._forget()

    def remove(self, sequence):
        for page in self.ids.pop(sequence, []):
            self._drop(page)
        self.lengths.pop(sequence, None)
        if self.places is not None:
            self.places.remove(sequence)
        self._forget()

    def crop(self, sequence, tokens):
        ids, keep = self.ids.get(sequence, []), -(-tokens // self.page_tokens)
        for page in ids[keep:]:
            self._drop(page)
        del ids[keep:]
        self.lengths[sequence] = min(tokens, self.lengths.get(sequence, 0))
        if self.places is not None:
            self.places.restore(sequence, self.lengths[sequence])
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
        return sum(core.memory.numel() + core.ring_bytes() for core in self.cores)

    def bytes_scratch(self):
        return sum(space.memory.numel() for space in self._spaces.values())
