# SPDX-License-Identifier: Apache-2.0
"""Stands for the CUDA kernels on a machine without a GPU: pages of fp32 values in host memory, the same addresses,
strides, slots, tables and lengths. What it cannot show is the kernels themselves (cuda_check.py)."""
import ctypes

import numpy as np

PAGE = 64


def at(address, dtype, count):
    size = np.dtype(dtype).itemsize * count
    return np.frombuffer((ctypes.c_char * size).from_address(int(address)), dtype)


def rows(described, batch, heads, tokens, d):
    """[batch, heads, tokens, d] fp32, writable."""
    address, dtype, b, h, t = described
    assert dtype == 0 and address % 16 == 0 and b % 16 == h % 16 == t % 16 == 0, described
    span = (batch - 1) * b + (heads - 1) * h + (tokens - 1) * t + 4 * d
    return np.lib.stride_tricks.as_strided(at(address, np.float32, span // 4), (batch, heads, tokens, d), (b, h, t, 4))


class DeviceStep:
    def __init__(self):
        self.slots = self.lengths = self.table = self.workspace = self.table_stride = self.batch = self.q_len = 0


class DeviceLayer:
    page_tokens = PAGE

    def __init__(self, spec, head_dim, kv_heads, layer):
        self.d, self.heads = head_dim, kv_heads
        self.page_bytes = kv_heads * PAGE * head_dim * 2 * 4

    def set_pages(self, address):
        self.address = address

    def set_raw_dtype(self, dtype):
        pass

    set_stats = describe = lambda self, *_: None

    def workspace_bytes(self, batch, heads, q_len):
        return 64

    def _page(self, page):
        return at(self.address + int(page) * self.page_bytes, np.float32, self.page_bytes // 4).reshape(2, self.heads, PAGE, self.d)

    def append(self, k, v, slots, tokens, flag, stream):
        for side, x in enumerate((k, v)):
            x = rows(x, 1, self.heads, tokens, self.d)[0]
            for t, slot in enumerate(at(slots, np.int64, tokens)):
                if slot >= 0:
                    self._page(slot // PAGE)[side, :, slot % PAGE] = x[:, t]

    def decompress(self, k, v, slots, tokens, stream):
        for side, x in enumerate((k, v)):
            x = rows(x, 1, self.heads, tokens, self.d)[0]
            for t, slot in enumerate(at(slots, np.int64, tokens)):
                if slot >= 0:
                    x[:, t] = self._page(slot // PAGE)[side, :, slot % PAGE]

    def plan(self, step, heads, window, stream):
        at(step.workspace, np.int32, 16)[:4] = step.batch, step.q_len, heads, window
        at(step.workspace, np.int32, 16)[4] = hash(tuple(at(step.lengths, np.int32, step.batch))) % (1 << 30)

    def attend(self, step, q, out, heads, scale, window, softcap, sinks, stream, lse=0):
        lengths = at(step.lengths, np.int32, step.batch)
        planned = at(step.workspace, np.int32, 16)[:5].tolist()
        assert planned == [step.batch, step.q_len, heads, window, hash(tuple(lengths)) % (1 << 30)], "not planned for this"
        q, out = (rows(x, step.batch, heads, step.q_len, self.d) for x in (q, out))
        for b, length in enumerate(lengths):
            ids = at(step.table + 4 * b * step.table_stride, np.int32, step.table_stride)
            both = np.concatenate([self._page(i) for i in ids], axis=2)[:, :, :length]
            k, v = (np.repeat(x, heads // self.heads, axis=0) for x in both)
            place = np.arange(length)[None] - (length - step.q_len + np.arange(step.q_len))[:, None]
            seen = (place <= 0) & ((place > -window) if window else True)
            scores = np.einsum("hqd,hkd->hqk", q[b], k) * scale
            if softcap:
                scores = np.tanh(scores / softcap) * softcap
            scores = np.where(seen, scores, -np.inf)
            most = np.maximum(scores.max(-1, keepdims=True, initial=-1e30), -1e30)
            if sinks:
                most = np.maximum(most, at(sinks, np.float32, heads)[:, None, None])
            weights = np.exp(scores - most)
            total = weights.sum(-1, keepdims=True)
            if sinks:
                total = total + np.exp(at(sinks, np.float32, heads)[:, None, None] - most)
            out[b] = np.einsum("hqk,hkd->hqd", weights, v) / np.maximum(total, 1e-30)
            if lse:
                with np.errstate(divide="ignore"):
                    value = np.where(total > 0, np.log(total) + most, -np.inf)[..., 0].T
                at(lse, np.float32, step.batch * step.q_len * heads).reshape(step.batch, step.q_len, heads)[b] = value


def install(monkeypatch):
    """Every TerseCache keeps its pages here."""
    from tersekv import _core
    from tersekv.hf import layer
    monkeypatch.setattr(_core, "DeviceLayer", DeviceLayer)
    monkeypatch.setattr(_core, "DeviceStep", DeviceStep)
    from tersekv.hf import rows
    monkeypatch.setattr(layer, "takes_pages", lambda device: True)
    monkeypatch.setattr(rows, "dtype_of", lambda dtype: dtype)
