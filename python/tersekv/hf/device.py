# SPDX-License-Identifier: Apache-2.0
"""A TerseCache whose keys and values arrive on CUDA: packed pages in device memory (tersekv/cuda_api.h).

Layers have the same tokens, so page ids, lengths and slots are made once a step, here, and every layer keeps pages of its
own in one torch tensor. A decode step sends one append and one attend a layer; nothing waits for the device.
"""
import contextlib
import os

import torch

from tersekv import _core
from tersekv.hf.pages import MOST_QUERIES, Pages

NVTX = os.environ.get("TERSEKV_NVTX", "") not in ("", "0")
STATS_TOKENS, LEAST_STATS_TOKENS = 4096, 64  # of all rows together, for the mean: spread over them; fewer: none


def device_spec(spec):
    """What device pages hold of a spec: no raw sinks and no raw window."""
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
        self.stats = None if self.raw or "mean=off" in self.spec else stats
        self.kept, self.stats_from = [], "profile" if self.stats is not None else "none"
        self.wants_stats = not self.raw and stats is None and "mean=off" not in self.spec
        if self.stats is not None:
            self._set_stats(*(None if not len(s) else torch.tensor(s, dtype=torch.float32).view(kv_heads, dk)
                              for s in self.stats))
        try:
            self.native.describe(heads or kv_heads, 1)
            self.no_kernel = None
        except ValueError as error:
            self.no_kernel = str(error)
        pages.cores.append(self)

    # -- memory --------------------------------------------------------------------------------------------------------
    def grow(self, count):
        grown = torch.empty(count * self.page_bytes, dtype=torch.uint8, device=self.pages.device)
        grown[:self.memory.numel()] = self.memory
        self.memory = grown
        self.native.set_pages(grown.data_ptr())

    def copy_pages(self, source, target):
        rows = self.memory.view(-1, self.page_bytes)
        rows[target] = rows[source]

    def _set_stats(self, k_mean, k_scale, v_mean, v_scale):
        device = self.pages.device
        kept = [None if x is None else x.to(device, torch.float32).contiguous()
                for x in (k_mean, k_scale, None if k_scale is None else 1 / k_scale, v_mean, v_scale,
                          None if v_scale is None else 1 / v_scale)]
        self.kept = kept
        self.native.set_stats(*(0 if x is None else x.data_ptr() for x in kept))

    def measure(self, k, v, valid):
        """Means of K and V and the channel scale of K, over tokens spread evenly over the first chunk; common to the batch
        from then on."""
        self.wants_stats = False
        rows = valid.ranges if valid is not None else [(0, k.shape[2])] * k.shape[0]
        total = sum(count for _, count in rows)
        if total < LEAST_STATS_TOKENS:
            return
        step = -(-total // STATS_TOKENS)
        k, v = (torch.cat([x[b, :, first:first + count:step] for b, (first, count) in enumerate(rows)], dim=1).double()
                for x in (k, v))
        scale = None
        if "scale=off" not in self.spec:
            scale = k.std(dim=1, unbiased=False).sqrt()
            scale = torch.maximum(scale, 1e-3 * scale.amax(dim=1, keepdim=True)).clamp_min(1e-30)
            scale = scale / scale.log().mean(dim=1, keepdim=True).exp()
        self._set_stats(k.mean(dim=1), scale, v.mean(dim=1), None)
        self.stats_from = f"{k.shape[1]} of the first {total} tokens of the batch"

    def by_tiles(self, n, valid, raw):
        """Whether a chunk of n slots goes through chunk.py rather than a kernel. raw: it sees its own tokens as they came."""
        behind = n > 1 and valid is not None and any(count and first + count != n for first, count in valid.ranges)
        return self.no_kernel is not None or behind or (raw and n > MOST_QUERIES)

    # -- launches ------------------------------------------------------------------------------------------------------
    def _stream(self):
        return 0 if self.pages.device.type == "cpu" else torch.cuda.current_stream(self.pages.device).cuda_stream

    def _here(self):
        """Launches go to the current device."""
        device = self.pages.device
        other = device.type == "cuda" and device.index != torch.cuda.current_device()
        return torch.cuda.device(device) if other else contextlib.nullcontext()

    def append(self, step, k, v, valid=None):
        if self.raw:
            self.native.set_raw_dtype(1 if self.spec.startswith("f16") else 2)
        if self.wants_stats:
            self.measure(k, v, valid)
        stream, flag = self._stream(), self.pages.not_finite.data_ptr()
        k, v = launchable(k), launchable(v)
        batch, n = step.batch, step.n
        with self._here(), nvtx("tersekv.append"):
            together = n == 1 or (batch > 1 and all(x.stride(0) == n * x.stride(2) for x in (k, v)))
            if batch == 1 or (together and n > 1):
                self.native.append(describe(k), describe(v), step.native.slots, batch * n, flag, stream)
            elif n == 1:  # rows of the batch stand where tokens do
                self.native.append(describe(k.transpose(0, 2)), describe(v.transpose(0, 2)), step.native.slots, batch,
                                   flag, stream)
            else:
                for b in range(batch):
                    self.native.append(describe(k[b:b + 1]), describe(v[b:b + 1]), step.native.slots + 8 * b * n, n,
                                       flag, stream)

    def attend(self, step, query, scale, window, softcap, sinks):
        """query: [batch, heads, n, d] -> [batch, n, heads, d]. Chunks of more than 16 go in blocks of 16 queries."""
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

    def decompress(self, k, v, slots):
        """k, v: [1, kv_heads, tokens, d], written; slots: as many on the device."""
        with self._here():
            self.native.decompress(describe(k), describe(v), slots.data_ptr(), slots.numel(), self._stream())

    def read(self, sequences, low, high, like, stored):
        """(K, V) of slots [low, high), decoded; padding is 0."""
        shape = (len(sequences), self.kv_heads, high - low, self.d)
        both = [torch.zeros(shape, dtype=like.dtype, device=self.pages.device) for _ in "kv"]
        slots = self.pages.slots_of(sequences, low, high, stored)
        for b in range(len(sequences)):
            self.decompress(*(x[b:b + 1] for x in both), slots[b])
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
        used = self.pages.pages_used() * self.page_bytes + sum(x.numel() * 4 for x in self.kept if x is not None)
        values = 2 * self.kv_heads * self.d * tokens
        return {"bytes_used": used, "bytes_f16": 2 * values, "tokens": tokens, "tokens_packed": 0 if self.raw else tokens,
                "bytes_reserved": self.pages.bytes_reserved(), "scratch": self.pages.bytes_scratch(),
                "bits_effective": 8 * used / values if values else 0.0}


def backend_name(store):
    """What stats() says of a cache on CUDA."""
    pages = store.pages
    return {"backend": f"cuda ({torch.cuda.get_device_name(pages.device)})" if pages.device.type == "cuda" else "mock",
            "device_spec": sorted({core.spec for core in pages.cores}), "device_bytes": pages.bytes_reserved(),
            "statistics": sorted({core.stats_from for core in pages.cores}),
            "no_kernel": sorted({core.no_kernel for core in pages.cores if core.no_kernel}),
            "chunks": f"up to {MOST_QUERIES} new tokens see themselves packed, by the kernel; with prefill='raw' a longer "
                      "chunk sees its own tokens raw and decodes the history tile by tile, with 'decode' it goes in blocks "
                      f"of {MOST_QUERIES}",
            "not_finite": bool(pages.not_finite.item())}
