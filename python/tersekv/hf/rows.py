# SPDX-License-Identifier: Apache-2.0
"""The raw rows of one layer on a device (raw.py says which tokens have one)."""
import torch

from tersekv.hf.parts import part


def dtype_of(dtype):
    """Rows take 2 bytes a value."""
    return torch.float16 if dtype == torch.float32 else dtype


class RawRows:
    def __init__(self, core, shape):
        self.core, self.shape = core, shape
        self.memory = None  # [K, V][1 + places * rows, kv_heads, d]; row 0 takes what nobody needs
        self._seen = None   # (memory, first place, batch), its keys, its values

    def bytes(self):
        return 0 if self.memory is None else self.memory.numel() * self.memory.element_size()

    def of_a_sequence(self):
        """Bytes of its rows."""
        return 0 if self.memory is None else self.memory[:, 0].numel() * self.shape.rows * self.memory.element_size()

    def grow(self, capacity, dtype=None):
        """dtype of keys and values makes the memory when it is not there; until then nothing is stored."""
        if self.memory is None and dtype is None:
            return
        dtype, count = self.memory.dtype if dtype is None else dtype_of(dtype), 1 + capacity * self.shape.rows
        if self.memory is not None and self.memory.shape[1] >= count:
            return
        grown = torch.zeros(2, count, self.core.kv_heads, self.core.d, dtype=dtype, device=self.core.pages.device)
        if self.memory is not None:
            grown[:, :self.memory.shape[1]] = self.memory
        self.memory, self._seen = grown, None

    def move(self, source, target):
        """Whole places; a target may be another one's source."""
        if self.memory is not None:
            places = self.memory[:, 1:].unflatten(1, (-1, self.shape.rows))
            places[:, target] = places[:, source]

    def _index(self, sequence, low, high):
        at = self.shape.row_of(torch.arange(low, high, device=self.core.pages.device))
        return at + (1 + self.core.pages.places.place[sequence] * self.shape.rows)

    def held(self, sequence, low, high):
        """(K, V) of positions [low, high), each [tokens, kv_heads, d]."""
        return self.memory[:, self._index(sequence, low, high)]

    def gather(self, rows, positions):
        """(K, V) of the same positions (on the device) of a batch whose places lie together: [batch, kv_heads, tokens, d]."""
        base = torch.arange(len(rows), device=positions.device)[:, None] + self.core.pages.places.place[rows[0]]
        index = (1 + base * self.shape.rows + self.shape.row_of(positions)).flatten()
        return self.memory[:, index].unflatten(1, (len(rows), -1)).transpose(2, 3)

    def put(self, sequence, low, high, both):
        self.memory[:, self._index(sequence, low, high)] = both.to(self.memory.dtype)

    def write(self, view, k, v):
        """k, v: [batch, kv_heads, n, d] of the view's slots."""
        if self.memory is None:
            self.grow(self.core.pages.places.capacity, k.dtype)
        for memory, x in zip(self.memory, (k, v)):
            rows = x[:, :, 0] if view.n == 1 else x.transpose(1, 2).flatten(0, 1)
            memory.index_copy_(0, view.write, rows.to(memory.dtype))

    def attend(self, view, q, scale, window, softcap):
        """q: [batch, heads, n, d] -> (out, lse [batch, heads, n]); a query that sees no raw row has -1e30 as lse."""
        where = self.memory.data_ptr(), view.base, view.batch
        if self._seen is None or self._seen[0] != where:
            own = slice(1 + view.base * self.shape.rows, 1 + (view.base + view.batch) * self.shape.rows)
            self._seen = where, *(x[own].unflatten(0, (view.batch, -1)).transpose(1, 2) for x in self.memory)
        _, k, v = self._seen
        group = q.shape[1] // k.shape[1]
        bias, blind = view.bias(group, window, q.dtype)
        out, lse = part(q, k, v, scale=scale, bias=bias, softcap=softcap)
        if blind is not None:
            lse = lse.masked_fill(blind.unflatten(2, (group, -1)).expand(-1, k.shape[1], -1, -1).flatten(1, 2), -1e30)
        return out, lse


def join(packed, packed_lse, raw, raw_lse, dtype):
    """packed: [batch, n, heads, d] fp32, lse [batch, n, heads]; raw: [batch, heads, n, d] -> like packed in `dtype`."""
    share = torch.sigmoid(raw_lse.transpose(1, 2) - packed_lse)
    return torch.lerp(packed, raw.transpose(1, 2).float(), share[..., None]).to(dtype)
