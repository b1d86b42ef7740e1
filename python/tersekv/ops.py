# SPDX-License-Identifier: Apache-2.0
"""The codec as torch operators: torch.compile sees one opaque call with known shapes.

    torch.ops.tersekv.compress(Tensor x, str spec, str side, int layer, int kv_head, float[] mean, float[] scale,
                               bool scaled) -> (Tensor packed, Tensor scales)
    torch.ops.tersekv.decompress(Tensor packed, Tensor scales, int head_dim, ..., ScalarType dtype) -> Tensor
"""
import functools

import torch

from tersekv import _arrays, _core

_CODEC = "str spec, str side, int layer, int kv_head, float[] mean, float[] scale, bool scaled"
_library = torch.library.Library("tersekv", "FRAGMENT")  # lives as long as the process
_library.define(f"compress(Tensor x, {_CODEC}) -> (Tensor, Tensor)")
_library.define(f"decompress(Tensor packed, Tensor scales, int head_dim, {_CODEC}, ScalarType dtype) -> Tensor")


@functools.lru_cache(maxsize=256)
def _codec(spec, side, head_dim, layer, kv_head, mean, scale):
    return _core.VectorCodec(spec, side, head_dim, layer, kv_head, list(mean), list(scale))


def _compress(x, spec, side, layer, kv_head, mean, scale, scaled):
    codec = _codec(spec, side, x.shape[-1], layer, kv_head, tuple(mean), tuple(scale))
    view = _arrays.rows_of(x, codec.head_dim)
    records = torch.empty((*x.shape[:-1], codec.record_bytes), dtype=torch.uint8)
    codec.encode(*view, records.data_ptr())
    if not scaled:
        return records, torch.empty(0, dtype=torch.bfloat16)
    return records[..., :-2].contiguous(), records[..., -2:].contiguous().view(torch.bfloat16)[..., 0]


def _decompress(packed, scales, head_dim, spec, side, layer, kv_head, mean, scale, scaled, dtype):
    if packed.dtype != torch.uint8:
        raise TypeError(f"packed is {packed.dtype}: uint8 is needed")
    if scaled and scales.dtype != torch.bfloat16:
        raise TypeError(f"scales are {scales.dtype}: bfloat16, as compress returned them, is needed")
    codec = _codec(spec, side, head_dim, layer, kv_head, tuple(mean), tuple(scale))
    records = packed
    if scaled:
        records = torch.cat([packed, scales[..., None].contiguous().view(torch.uint8)], dim=-1)
    records = records.contiguous()
    out = torch.empty((*packed.shape[:-1], head_dim), dtype=dtype)
    codec.decode(records.data_ptr(), *_arrays.rows_of(out, head_dim, "out"))
    return out


def _compress_fake(x, spec, side, layer, kv_head, mean, scale, scaled):
    record = _codec(spec, side, int(x.shape[-1]), layer, kv_head, tuple(mean), tuple(scale)).record_bytes
    packed = x.new_empty((*x.shape[:-1], record - (2 if scaled else 0)), dtype=torch.uint8)
    return packed, x.new_empty(x.shape[:-1] if scaled else (0,), dtype=torch.bfloat16)


def _decompress_fake(packed, scales, head_dim, spec, side, layer, kv_head, mean, scale, scaled, dtype):
    return packed.new_empty((*packed.shape[:-1], head_dim), dtype=dtype)


_library.impl("compress", _compress, "CPU")
_library.impl("decompress", _decompress, "CPU")
torch.library.register_fake("tersekv::compress", _compress_fake, lib=_library)
torch.library.register_fake("tersekv::decompress", _decompress_fake, lib=_library)


def compress(x, key):
    spec, side, head_dim, layer, kv_head, mean, scale, scaled = key
    if x.shape[-1] != head_dim:
        raise ValueError(f"x has shape {list(x.shape)}: its last dimension must be head_dim = {head_dim}")
    return torch.ops.tersekv.compress(x, spec, side, layer, kv_head, list(mean), list(scale), scaled)


def decompress(packed, scales, key, dtype):
    spec, side, head_dim, layer, kv_head, mean, scale, scaled = key
    return torch.ops.tersekv.decompress(packed, scales, head_dim, spec, side, layer, kv_head, list(mean), list(scale),
                                        scaled, dtype)
