# SPDX-License-Identifier: Apache-2.0
"""The codec as torch operators: torch.compile sees one opaque call with known shapes.

    torch.ops.tersekv.compress(Tensor x, str spec, str side, int layer, int kv_head, float[] mean, float[] scale)
        -> (Tensor packed, Tensor scales)
    torch.ops.tersekv.decompress(Tensor packed, Tensor scales, int head_dim, ..., ScalarType dtype) -> Tensor

Codecs whose records do not end with a scale give, and take, scales of shape [0]. Wrong shapes and dtypes raise, under
torch.compile already while it traces.
"""
import atexit
import functools

import torch

from tersekv import _arrays, _core

_CODEC = "str spec, str side, int layer, int kv_head, float[] mean, float[] scale"
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_library = torch.library.Library("tersekv", "FRAGMENT")  # lives as long as the process
_library.define(f"compress(Tensor x, {_CODEC}) -> (Tensor, Tensor)")
_library.define(f"decompress(Tensor packed, Tensor scales, int head_dim, {_CODEC}, ScalarType dtype) -> Tensor")


@functools.lru_cache(maxsize=256)
def _codec(spec, side, head_dim, layer, kv_head, mean, scale):
    codec = _core.VectorCodec(spec, side, head_dim, layer, kv_head, list(mean), list(scale))
    if codec.record_rows != 1:
        raise ValueError(f"'{spec}' stores whole pages of {codec.record_rows} tokens: these operators take specs whose "
                         "record is one vector, e.g. 'k4v4'")
    return codec


atexit.register(_codec.cache_clear)  # torch keeps these functions, and with them the cache, past the module's end


def _codec_of(head_dim, spec, side, layer, kv_head, mean, scale):
    return _codec(spec, side, int(head_dim), layer, kv_head, tuple(mean), tuple(scale))


def _check_rows(x):
    if x.ndim == 0:
        raise ValueError("x has no dimensions: [..., head_dim] is needed")
    if x.dtype not in _DTYPES:
        raise TypeError(f"dtype {str(x.dtype).removeprefix('torch.')} is not taken: convert to float32, float16 or "
                        "bfloat16 first")


def _check_records(codec, packed, scales, spec, dtype):
    """What is read through addresses must be there."""
    if packed.dtype != torch.uint8:
        raise TypeError(f"packed is {packed.dtype}: uint8 is needed")
    code_bytes = codec.record_bytes - codec.scale_bytes
    if packed.ndim == 0 or packed.shape[-1] != code_bytes:
        raise ValueError(f"packed has shape {list(packed.shape)}: its last dimension must be the {code_bytes} bytes of a "
                         f"vector ('{spec}' at head_dim {codec.head_dim})")
    if dtype not in _DTYPES:
        raise TypeError(f"dtype {dtype} is not given: float32, float16 or bfloat16")
    if codec.scale_bytes == 0:
        return
    if scales.dtype != torch.bfloat16:
        raise TypeError(f"scales are {scales.dtype}: bfloat16, as compress returned them, is needed")
    if scales.shape != packed.shape[:-1]:
        raise ValueError(f"scales have shape {list(scales.shape)}, packed has {list(packed.shape[:-1])} vectors")


def _compress(x, spec, side, layer, kv_head, mean, scale):
    _check_rows(x)
    codec = _codec_of(x.shape[-1], spec, side, layer, kv_head, mean, scale)
    view = _arrays.rows_of(x, codec.head_dim)
    records = torch.empty((*x.shape[:-1], codec.record_bytes), dtype=torch.uint8)
    codec.encode(*view, records.data_ptr())
    if codec.scale_bytes == 0:
        return records, torch.empty(0, dtype=torch.bfloat16)
    return records[..., :-2].contiguous(), records[..., -2:].contiguous().view(torch.bfloat16)[..., 0]


def _decompress(packed, scales, head_dim, spec, side, layer, kv_head, mean, scale, dtype):
    codec = _codec_of(head_dim, spec, side, layer, kv_head, mean, scale)
    _check_records(codec, packed, scales, spec, dtype)
    records = packed
    if codec.scale_bytes > 0:
        records = torch.cat([packed, scales[..., None].contiguous().view(torch.uint8)], dim=-1)
    records = records.contiguous()
    out = torch.empty((*packed.shape[:-1], head_dim), dtype=dtype)
    codec.decode(records.data_ptr(), *_arrays.rows_of(out, head_dim, "out"))
    return out


def _compress_fake(x, spec, side, layer, kv_head, mean, scale):
    _check_rows(x)
    codec = _codec_of(x.shape[-1], spec, side, layer, kv_head, mean, scale)
    packed = x.new_empty((*x.shape[:-1], codec.record_bytes - codec.scale_bytes), dtype=torch.uint8)
    return packed, x.new_empty(x.shape[:-1] if codec.scale_bytes > 0 else (0,), dtype=torch.bfloat16)


def _decompress_fake(packed, scales, head_dim, spec, side, layer, kv_head, mean, scale, dtype):
    _check_records(_codec_of(head_dim, spec, side, layer, kv_head, mean, scale), packed, scales, spec, dtype)
    return packed.new_empty((*packed.shape[:-1], head_dim), dtype=dtype)


def _on_device(x, head_dim, spec, side, layer, kv_head, mean, scale):
    from tersekv import ops_cuda
    _arrays.check_device(x.device)
    return ops_cuda, ops_cuda.device_rows(spec, side, int(head_dim), layer, kv_head, tuple(mean), tuple(scale), x.device)


def _compress_cuda(x, spec, side, layer, kv_head, mean, scale):
    _check_rows(x)
    codec = _codec_of(x.shape[-1], spec, side, layer, kv_head, mean, scale)
    ops_cuda, of = _on_device(x, codec.head_dim, spec, side, layer, kv_head, mean, scale)
    packed, scales = _compress_fake(x, spec, side, layer, kv_head, mean, scale)
    rows, to, by = x.detach().reshape(-1, codec.head_dim).contiguous(), packed.view(-1, packed.shape[-1]), scales.view(-1)
    for at in range(0, rows.shape[0], ops_cuda.ROWS):
        part = slice(at, at + ops_cuda.ROWS)
        with torch.cuda.device(x.device):
            to[part], by[part] = ops_cuda.compress(of, rows[part])
    return packed, scales


def _decompress_cuda(packed, scales, head_dim, spec, side, layer, kv_head, mean, scale, dtype):
    ops_cuda, of = _on_device(packed, head_dim, spec, side, layer, kv_head, mean, scale)
    if scales.device != packed.device:
        raise ValueError(f"packed is on {packed.device}, scales on {scales.device}: both must be on one device")
    out = _decompress_fake(packed, scales, head_dim, spec, side, layer, kv_head, mean, scale, dtype)
    rows, by, to = packed.reshape(-1, packed.shape[-1]), scales.reshape(-1), out.view(-1, head_dim)
    for at in range(0, rows.shape[0], ops_cuda.ROWS):
        part = slice(at, at + ops_cuda.ROWS)
        with torch.cuda.device(packed.device):
            to[part] = ops_cuda.decompress(of, rows[part], by[part], dtype)
    return out


_library.impl("compress", _compress, "CPU")
_library.impl("compress", _compress_cuda, "CUDA")
_library.impl("decompress", _decompress_cuda, "CUDA")
_library.impl("decompress", _decompress, "CPU")
torch.library.register_fake("tersekv::compress", _compress_fake, lib=_library)
torch.library.register_fake("tersekv::decompress", _decompress_fake, lib=_library)


def compress(x, key):
    spec, side, head_dim, layer, kv_head, mean, scale = key
    if x.ndim == 0 or x.shape[-1] != head_dim:
        raise ValueError(f"x has shape {list(x.shape)}: its last dimension must be head_dim = {head_dim}")
    return torch.ops.tersekv.compress(x, spec, side, layer, kv_head, list(mean), list(scale))


def decompress(packed, scales, key, dtype):
    spec, side, head_dim, layer, kv_head, mean, scale = key
    return torch.ops.tersekv.decompress(packed, scales, head_dim, spec, side, layer, kv_head, list(mean), list(scale),
                                        dtype)
