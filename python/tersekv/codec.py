# SPDX-License-Identifier: Apache-2.0
"""One vector at a time: rows of K or V to packed codes and scales, and back. For caches and attention of your own."""
import numpy as np

from tersekv import _arrays, _core


def _widths(bits, key_bits, value_bits):
    if (key_bits is None) != (value_bits is None):
        raise ValueError("key_bits and value_bits are given together, or neither")
    k, v = (bits, bits) if key_bits is None else (key_bits, value_bits)
    for name, b in (("key", k), ("value", v)):
        if isinstance(b, bool) or not isinstance(b, int) or not 2 <= b <= 8:
            raise ValueError(f"{b!r} {name} bits: whole numbers from 2 to 8 (others by spec=, e.g. 'k2.5qv2.5q')")
    return k, v


class Codec:
    """compress_k / compress_v: [..., head_dim] -> (packed uint8 [..., head_dim * bits / 8], scales [...]).

    Arrays are torch tensors (CPU, or CUDA in a build with it; float32, float16, bfloat16; any strides but in the last dimension) or numpy arrays
    (float32, float16). Scales are bfloat16 in torch and, exactly, float32 in numpy. The packed bytes are the canonical
    records of docs/formats.md: identical on every machine. Thread-safe but for fit_k and fit_v.

    bits (or key_bits and value_bits) mean Lloyd-Max codes after a random Hadamard transform; spec= names any other codec
    whose record is one vector. fit_k(rows) and fit_v(rows) measure a mean (K: and a channel scale), which later calls
    subtract and put back: fewer bits are then as good, and decompressing needs the same fitted object.
    """

    def __init__(self, head_dim=128, bits=4, device="cpu", *, key_bits=None, value_bits=None, spec=None, layer=0,
                 kv_head=0):
        self.device = _arrays.check_device(device)
        if spec is None:
            k, v = _widths(bits, key_bits, value_bits)
            spec = f"k{k}v{v}"
        elif key_bits is not None or value_bits is not None or bits != 4:
            raise ValueError(f"spec='{spec}' and bits were given together: choose one")
        self.spec = _core.canonical(spec)
        self.head_dim, self.layer, self.kv_head = head_dim, layer, kv_head
        self._stats = {"k": ((), ()), "v": ((), ())}
        self._codecs, self._record_bytes, self._scale_bytes = {}, {}, {}
        for side in "kv":
            self._codecs[side] = codec = self._make(side)
            self._record_bytes[side], self._scale_bytes[side] = codec.record_bytes, codec.scale_bytes
            if codec.record_rows != 1:
                raise ValueError(f"'{self.spec}' stores whole pages of {codec.record_rows} tokens: Codec takes specs "
                                 "whose record is one vector, e.g. 'k4v4'")

    def _make(self, side):
        mean, scale = self._stats[side]
        return _core.VectorCodec(self.spec, side, self.head_dim, self.layer, self.kv_head, list(mean), list(scale))

    def __repr__(self):
        return f"Codec(head_dim={self.head_dim}, spec='{self.spec}', ratio={self.ratio:.2f})"

    # -- sizes ---------------------------------------------------------------------------------------------------------
    @property
    def bytes_per_token(self):
        """Of K and V of one head: codes and scales."""
        return sum(self._record_bytes.values())

    @property
    def ratio(self):
        """float16 bytes over packed bytes, K and V together."""
        return 4 * self.head_dim / self.bytes_per_token

    # -- statistics ----------------------------------------------------------------------------------------------------
    def fit_k(self, rows):
        """Measures mean and channel scale of keys [..., head_dim]; 128 tokens are plenty. Returns self."""
        return self._fit("k", rows)

    def fit_v(self, rows):
        return self._fit("v", rows)

    def _fit(self, side, rows):
        if _arrays.is_torch(rows) and rows.is_cuda:
            rows = rows.cpu()  # measured in float64 there
        view = _arrays.rows_of(rows, self.head_dim, "rows")
        self._stats[side] = _core.measure_row_stats(self.spec, side, self.head_dim, *view)
        self._codecs[side] = self._make(side)
        return self

    # -- rows to codes and back ----------------------------------------------------------------------------------------
    def compress_k(self, x):
        return self._compress("k", x)

    def compress_v(self, x):
        return self._compress("v", x)

    def decompress_k(self, packed, scales=None, dtype=None):
        """-> [..., head_dim] in `dtype`: torch.float32 (default), float16, bfloat16; numpy float32, float16."""
        return self._decompress("k", packed, scales, dtype)

    def decompress_v(self, packed, scales=None, dtype=None):
        return self._decompress("v", packed, scales, dtype)

    def _compress(self, side, x):
        if _arrays.is_torch(x):
            _arrays.check_device(x.device)
            from tersekv import ops
            packed, scales = ops.compress(x, self._key(side))
            return packed, scales if self._scale_bytes[side] else None
        view = _arrays.rows_of(x, self.head_dim)
        codec = self._codecs[side]
        records = np.empty((*x.shape[:-1], codec.record_bytes), np.uint8)
        codec.encode(*view, records.__array_interface__["data"][0])
        if codec.scale_bytes == 0:
            return records, None
        high = np.ascontiguousarray(records[..., -2:]).view("<u2")[..., 0].astype(np.uint32) << 16
        return np.ascontiguousarray(records[..., :-2]), high.view(np.float32)

    def _decompress(self, side, packed, scales, dtype):
        scaled = self._scale_bytes[side] > 0
        if scaled and scales is None:
            raise ValueError(f"'{self.spec}' has a scale a vector: pass the scales that compress_{side} returned")
        code_bytes = self._record_bytes[side] - self._scale_bytes[side]
        if not _arrays.is_torch(packed) and (not isinstance(packed, np.ndarray) or packed.dtype != np.uint8):
            raise TypeError("packed is a torch tensor or numpy array of uint8, as compress returned it")
        if packed.ndim == 0 or packed.shape[-1] != code_bytes:
            raise ValueError(f"packed has shape {list(packed.shape)}: its last dimension must be the {code_bytes} bytes "
                             f"of a vector ('{self.spec}' at head_dim {self.head_dim})")
        if scaled and tuple(scales.shape) != tuple(packed.shape[:-1]):
            raise ValueError(f"scales have shape {list(scales.shape)}, packed has {list(packed.shape[:-1])} vectors")
        if _arrays.is_torch(packed):
            _arrays.check_device(packed.device)
            import torch
            from tersekv import ops
            if scales is None:
                scales = packed.new_empty(0, dtype=torch.bfloat16)
            return ops.decompress(packed, scales, self._key(side), dtype or torch.float32)
        out = np.empty((*packed.shape[:-1], self.head_dim), dtype or np.float32)
        view = _arrays.rows_of(out, self.head_dim, "out")
        records = packed
        if scaled:
            bits = np.ascontiguousarray(scales, np.float32).view(np.uint32)
            if np.any(bits & 0xFFFF):
                raise ValueError("scales are not bfloat16 values: pass what compress returned")
            halves = (bits >> 16).astype("<u2")[..., None].view(np.uint8)
            records = np.concatenate([packed, halves], axis=-1)
        records = np.ascontiguousarray(records, np.uint8)
        self._codecs[side].decode(records.__array_interface__["data"][0], *view)
        return out

    def _key(self, side):
        """What names this codec in the operators of ops.py."""
        mean, scale = self._stats[side]
        return (self.spec, side, self.head_dim, self.layer, self.kv_head, tuple(mean), tuple(scale))
