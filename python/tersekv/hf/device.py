# SPDX-License-Identifier: Apache-2.0
"""A TerseCache whose keys and values arrive on CUDA: packed pages in device memory (tersekv/cuda_api.h).

Layers have the same tokens, so page ids, lengths and slots are made once a step, in pages.py, and every layer keeps pages
of its own in one torch tensor, raw sinks and window in another (raw.py). Nothing waits for the device.
"""
import contextlib
import os

import torch

from tersekv import _core
from tersekv.hf.pages import MOST_QUERIES, Pages  # noqa: F401  Store takes Pages from here
from tersekv.hf.rows import RawRows, join
from tersekv.hf.statistics import Statistics

NVTX = os.environ.get("TERSEKV_NVTX", "") not in ("", "0")


def device_spec(spec):
    """What device pages hold of a spec; raw sinks and the raw window lie beside them."""
    for option in ("sink=", "win="):
        spec = "+".join(part for part in spec.split("+") if not part.startswith(option))
    return _core.canonical(spec if _core.spec_is_raw(spec) else f"{spec}+sink=0+win=0")


def describe(x):
    size = x.element_size()
    b, h, t, _ = x.stride()
    return x.data_ptr(), (0 if size == 4 else 1 if x.dtype == torch.float16 else 2), b * size, h * size, t * size


def launchable(x):
    """Rows of neighbours that start at multiples of 16 bytes."""
    size = x.element_size()
    good = x.stride(3) == 1 and all(s * size % 16 == 0 for s in x.stride()[:3]) and x.data_ptr() % 16 == 0
    return x if good else x.contiguous()


def nvtx(name):
    return torch.cuda.nvtx.range(name) if NVTX else contextlib.nullcontext()


class DeviceCore:
    """The pages of one layer; stands where a LayerCache of the core stands in Store."""

    def __init__(self, pages, layer, heads, stats=None):
        kv_heads, dk, dv = layer.shape
        if dk != dv:
            raise ValueError(f"layer {layer.index} has keys of {dk} and values of {dv} channels: CUDA pages take one "
                             "head_dim; use DynamicCache for this model")
        self.pages, self.heads, self.kv_heads, self.d = pages, heads, kv_heads, dk
        self.spec = device_spec(layer.spec)
        self.native = _core.DeviceLayer(self.spec, dk, kv_heads, layer.ordinal)
        if self.native.page_tokens != pages.page_tokens:
            raise ValueError(f"'{self.spec}' has pages of {self.native.page_tokens} tokens, other layers of "
                             f"{pages.page_tokens}: on CUDA all layers take the same page=")
        self.page_bytes, self.raw = self.native.page_bytes, _core.spec_is_raw(self.spec)
        self.memory = torch.empty(0, dtype=torch.uint8, device=pages.device)
        self.rows = None if self.raw or pages.places is None else RawRows(self, pages.places.shape)
        self.statistics = Statistics(self, stats)
        try:
            self.native.describe(heads or kv_heads, 1)
            self.no_kernel = None
        except ValueError as error:
            self.no_kernel = str(error)
        pages.cores.append(self)

    # -- memory --------------------------------------------------------------------------------------------------------
    def grow(self, count):
        grown = self.pages.memory_for(count * self.page_bytes)
        grown[:self.memory.numel()] = self.memory
        self.memory = grown
        self.native.set_pages(grown.data_ptr())

    def copy_pages(self, source, target):
        rows = self.memory.view(-1, self.page_bytes)
        rows[target] = rows[source]

    def grow_ring(self, capacity):
        if self.rows is not None:
            self.rows.grow(capacity)

    def move_rows(self, source, target):
        if self.rows is not None:
            self.rows.move(source, target)

    def ring_bytes(self):
        return 0 if self.rows is None else self.rows.bytes()

    def refill(self, sequence, low, high):
        """Positions [low, high) of the ring from pages, where they are."""
        if self.rows is None or self.rows.memory is None or self.statistics.wanted:
            return
        both = torch.empty(2, 1, self.kv_heads, high - low, self.d, dtype=self.rows.memory.dtype, device=self.pages.device)
        self.decompress(*both, self.packed_slots(sequence, low, high))
        self.rows.put(sequence, low, high, both[:, 0].transpose(1, 2))

    @property
    def sink(self):
        """Position of the first packed token."""
        return 0 if self.rows is None else self.rows.shape.sink

    def packed_slots(self, sequence, low, high):
        """Device slots of positions [low, high), none before `sink`."""
        return self.pages._slots(sequence, low - self.sink, high - self.sink).to(self.pages.device)

    def pack_held(self, sequence, high):
        """Positions up to `high`, which have only raw rows so far."""
        if high > self.sink:
            k, v = (x.transpose(0, 1)[None] for x in self.rows.held(sequence, self.sink, high))
            slots = self.packed_slots(sequence, self.sink, high)
            with self._here():
                self.native.append(describe(k), describe(v), slots.data_ptr(), high - self.sink,
                                   self.pages.not_finite.data_ptr(), self._stream())

    def by_tiles(self, n, valid, raw):
        """Whether a chunk of n slots goes through chunk.py rather than a kernel. raw: it sees its own tokens as they came."""
        behind = n > 1 and valid is not None and any(count and first + count != n for first, count in valid.ranges)
        return self.no_kernel is not None or behind or (raw and n > MOST_QUERIES)

    def needs_history(self, n, prefill):
        """Whether a chunk of n cannot be attended once its raw rows are written, over those before it."""
        return self.rows is not None and n > MOST_QUERIES and prefill == "decode"

    # -- launches ------------------------------------------------------------------------------------------------------
    def _stream(self):
        return 0 if self.pages.device.type == "cpu" else torch.cuda.current_stream(self.pages.device).cuda_stream

    def _here(self):
        """Launches go to the current device."""
        device = self.pages.device
        other = device.type == "cuda" and device.index != torch.cuda.current_device()
        return torch.cuda.device(device) if other else contextlib.nullcontext()

    def append(self, step, k, v, valid=None, remember=True):
        """remember: raw rows are written too."""
        if self.raw:
            self.native.set_raw_dtype(1 if self.spec.startswith("f16") else 2)
        if not self.statistics.wanted or self.statistics.measure(step, k, v, valid):
            self._pack(step, k, v)
        if remember:
            self.remember(step, k, v)

    def remember(self, step, k, v):
        if self.rows is not None:
            self.rows.write(step.view(), k, v)

    def _pack(self, step, k, v):
        stream, flag = self._stream(), self.pages.not_finite.data_ptr()
        k, v = launchable(k), launchable(v)
        batch, n = step.batch, step.n
        slots = step.native.slots if self.rows is None else step.view().slots().data_ptr()
        with self._here(), nvtx("tersekv.append"):
            together = n == 1 or (batch > 1 and all(x.stride(0) == n * x.stride(2) for x in (k, v)))
            if batch == 1 or (together and n > 1):
                self.native.append(describe(k), describe(v), slots, batch * n, flag, stream)
            elif n == 1:  # rows of the batch stand where tokens do
                self.native.append(describe(k.transpose(0, 2)), describe(v.transpose(0, 2)), slots, batch, flag, stream)
            else:
                for b in range(batch):
                    self.native.append(describe(k[b:b + 1]), describe(v[b:b + 1]), slots + 8 * b * n, n, flag, stream)

    def attend(self, step, query, scale, window, softcap, sinks):
        """query: [batch, heads, n, d] -> [batch, n, heads, d]. Chunks of more than 16 go in blocks of 16 queries."""
        if self.rows is not None:
            return self._attend_raw(step, step.view(), query, scale, window, softcap, sinks)
        query = launchable(query)
        out = torch.empty(query.shape[0], query.shape[2], query.shape[1], self.d, dtype=query.dtype, device=query.device)
        sinks = None if sinks is None else sinks.detach().float().flatten().contiguous()
        address = 0 if sinks is None else sinks.data_ptr()
        stream, heads = self._stream(), query.shape[1]
        shaped = out.transpose(1, 2)
        with self._here(), nvtx("tersekv.attend"):
            for part in step.parts():
                native = part.ready(self, heads, window or 0, stream)
                q, o = part.take(query), part.take(shaped)
                self.native.attend(native, describe(q), describe(o), heads, scale, window or 0, softcap or 0.0, address,
                                   stream)
        return out

    def attend_pieces(self, step, k, v, query, scale, window, softcap, sinks):
        """A chunk of more than 16, packed but not yet remembered, with raw rows: piece by piece, as they would come."""
        outs = []
        for first in range(0, step.n, MOST_QUERIES):
            own = slice(first, min(first + MOST_QUERIES, step.n))
            view = step.view((first, own.stop - first))
            self.rows.write(view, k[:, :, own], v[:, :, own])
            outs.append(self._attend_raw(step, view, query[:, :, own], scale, window, softcap, sinks))
        return torch.cat(outs, dim=1)

    def _attend_raw(self, step, view, query, scale, window, softcap, sinks):
        """Raw rows by torch, packed tokens by the kernel when there may be any, joined by lse."""
        shape, batch, heads, n = self.rows.shape, query.shape[0], query.shape[1], query.shape[2]
        raw, raw_lse = self.rows.attend(view, query, scale, window, softcap)
        sinks = None if sinks is None else sinks.detach().float().flatten().contiguous()
        if (window and window <= shape.window) or not step.reaches_pages(shape):
            if sinks is not None:
                raw = raw * torch.sigmoid(raw_lse - sinks[:, None])[..., None].to(raw.dtype)
            return raw.transpose(1, 2).contiguous()
        query, behind = launchable(query), max((window or 0) - shape.window, 0)  # packed queries stand `window` behind
        packed = torch.empty(batch, n, heads, self.d, dtype=torch.float32, device=query.device)
        lse = torch.empty(batch, n, heads, dtype=torch.float32, device=query.device)
        address, stream = 0 if sinks is None else sinks.data_ptr(), self._stream()
        with self._here(), nvtx("tersekv.attend"):
            native = view.part().ready(self, heads, behind, stream)
            self.native.attend(native, describe(query), describe(packed.transpose(1, 2)), heads, scale, behind,
                               softcap or 0.0, address, stream, lse.data_ptr())
        return join(packed, lse, raw, raw_lse, query.dtype)

    def decompress(self, k, v, slots):
        """k, v: [1, kv_heads, tokens, d], written; slots: as many on the device."""
        with self._here():
            self.native.decompress(describe(k), describe(v), slots.data_ptr(), slots.numel(), self._stream())

    def read(self, sequences, low, high, like, stored):
        """(K, V) of slots [low, high), raw where a query that follows sees them raw, else decoded; padding is 0."""
        shape = (len(sequences), self.kv_heads, high - low, self.d)
        both = [torch.zeros(shape, dtype=like.dtype, device=self.pages.device) for _ in "kv"]
        slots = self.pages.slots_of(sequences, low, high, stored, self.sink)
        for b, row in enumerate(sequences):
            if not self.statistics.wanted:
                self.decompress(*(x[b:b + 1] for x in both), slots[b])
            if self.rows is not None and self.rows.memory is not None:
                at, positions = self.pages.raw_places(row, b, low, high, stored, self.statistics.wanted)
                for x, memory in zip(both, self.rows.memory):
                    x[b, :, at] = memory[positions].transpose(0, 1).to(x.dtype)
        return both

    # -- what Store, Undo and TerseCache ask ---------------------------------------------------------------------------
    def set_heads(self, heads):
        self.heads = heads

    def settle(self, sequences):
        self.pages.settle()

    def undo(self, sequences):
        self.pages.undo()

    def fork(self, source, target):
        self.pages.fork(source, target)

    def remove(self, sequence):
        self.pages.remove(sequence)

    def usage(self):
        tokens = self.pages.tokens()
        used = self.pages.pages_used() * self.page_bytes + self.statistics.bytes()
        used += 0 if self.rows is None else self.rows.of_a_sequence() * len(self.pages.lengths)
        values = 2 * self.kv_heads * self.d * tokens
        unseen = 0 if self.rows is None else self.rows.shape.sink + self.rows.shape.window
        packed = 0 if self.raw else sum(max(length - unseen, 0) for length in self.pages.lengths.values())
        return {"bytes_used": used, "bytes_f16": 2 * values, "tokens": tokens, "tokens_packed": packed,
                "bytes_reserved": self.pages.bytes_reserved(), "scratch": self.pages.bytes_scratch(),
                "bits_effective": 8 * used / values if values else 0.0}


def backend_name(store):
    """What stats() says of a cache on CUDA."""
    pages = store.pages
    return {"backend": f"cuda ({torch.cuda.get_device_name(pages.device)})" if pages.device.type == "cuda" else "mock",
            "device_spec": sorted({core.spec for core in pages.cores}), "device_bytes": pages.bytes_reserved(),
            "statistics": sorted({core.statistics.source for core in pages.cores}),
            "no_kernel": sorted({core.no_kernel for core in pages.cores if core.no_kernel}),
            "chunks": f"up to {MOST_QUERIES} new tokens see themselves packed, by the kernel; with prefill='raw' a longer "
                      "chunk sees its own tokens raw and decodes the history tile by tile, with 'decode' it goes in blocks "
                      f"of {MOST_QUERIES}",
            "not_finite": bool(pages.not_finite.item())}
