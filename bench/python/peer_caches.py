# SPDX-License-Identifier: Apache-2.0
"""Caches of other Python packages behind one interface, for peers.py, peers_speed.py and peers_cuda.py.

A contestant is a name, the attention that its model runs with, and what makes its cache. Some caches have end_prompt(),
which is called once after the prompt. Packages that are missing or fail are named in `refused`, with their own message.
"""
import importlib.metadata
import warnings
from dataclasses import dataclass
from typing import Callable

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, QuantizedCache

from tersekv import TerseCache

PACKAGES = ("tersekv", "torch", "transformers", "tiny-turboquant", "turboquant-gpu", "turbo-attn", "optimum-quanto", "hqq",
            "cuda-tile", "nvidia-cutlass-dsl")
OURS = ("k8v8", "k6v6", "k4v4", "k4v3", "kivi-k4v4", "k3tv3t", "k3v3", "k2v2", "k4v4+sink=0+win=0")


@dataclass
class Contestant:
    name: str
    attention: str
    make: Callable
    patch: Callable | None = None  # of the model, before its steps; `unpatch` after them
    unpatch: Callable | None = None


def versions():
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def tensor_bytes(value, seen):
    """Of all tensors that an object holds, each storage once."""
    if torch.is_tensor(value):
        if hasattr(value, "_data"):  # quanto: a tensor of several
            return sum(tensor_bytes(getattr(value, name, None), seen) for name in ("_data", "_scale", "_shift"))
        storage = value.untyped_storage()
        if storage.nbytes() == 0 or storage.data_ptr() in seen:
            return 0
        seen.add(storage.data_ptr())
        return storage.nbytes()
    if isinstance(value, dict):
        value = list(value.values())
    return sum(tensor_bytes(item, seen) for item in value) if isinstance(value, (list, tuple)) else 0


def held_bytes(cache):
    if isinstance(cache, TerseCache):
        return cache.stats()["bytes_used"]
    seen = set()
    held = sum(tensor_bytes(list(vars(layer).values()), seen) for layer in cache.layers)
    return held + tensor_bytes(getattr(cache, "beside", None), seen)


def in_half(cache):
    """Gives a cache float16 keys and values and takes float32 ones from it, as a float16 model would: its raw windows then
    take 2 bytes a value, while the model computes in float32."""
    inner = cache.update

    def update(keys, values, layer, *arguments, **options):
        keys, values = inner(keys.half(), values.half(), layer, *arguments, **options)
        return keys.float(), values.float()

    cache.update = update
    return cache


class CodecLayer(DynamicLayer):
    """Every token through a codec once, all of them decoded at each step; a prompt attends its own raw tokens."""

    def __init__(self, encode, decode):
        super().__init__()
        self.encode, self.decode, self.packed, self.tokens = encode, decode, None, 0

    def update(self, keys, values, *_, **__):
        first = self.packed is None
        if first:
            self.lazy_initialization(keys, values)
        new = self.encode(keys, values)
        self.packed = new if first else [torch.cat([old, fresh], dim=2) for old, fresh in zip(self.packed, new)]
        self.tokens += keys.shape[2]
        return (keys, values) if first else tuple(x.to(keys.dtype) for x in self.decode(self.packed))

    def get_seq_length(self):
        return self.tokens


def codec_cache(config, make):
    """make(layer) -> (encode, decode); tokens along dimension 2 of all that encode gives."""
    cache = DynamicCache(config=config)
    cache.layers = [CodecLayer(*make(layer)) for layer in range(config.num_hidden_layers)]
    return cache


def turboquant_codec(engine):
    """Its own compress and decompress of rows, all heads of all batch rows at once, tensors as it returns them (k_mse, the
    decoded copy of the keys, among them)."""
    def encode(keys, values):
        shape, d = keys.shape[:3], keys.shape[3]
        k, v = engine._compress_kv_fused(*(x.reshape(-1, d).half().contiguous() for x in (keys, values)))
        return [x.view(*shape, -1) for x in (k["indices"], k["vec_norms"], k["k_mse"], v["indices"], v["vec_norms"])]

    def decode(packed):
        shape, d = packed[0].shape[:3], packed[0].shape[3]
        codes, norms, _, value_codes, value_norms = packed
        both = engine._decompress_kv_fused(
            *({"indices": c.reshape(-1, d), "vec_norms": n.reshape(-1)} for c, n in ((codes, norms),
                                                                                   (value_codes, value_norms))))
        return tuple(x.view(*shape, d) for x in both)

    return encode, decode


class TurboQuantGenerate(DynamicCache):
    """What TurboQuantEngine.generate() decodes on: the prompt compressed and decoded again into a DynamicCache, later
    tokens raw; the compressed prompt stays beside it."""

    def __init__(self, config, engine):
        super().__init__(config=config)
        self.engine, self.beside = engine, None

    def end_prompt(self):
        compressed = self.engine.compress_kv_cache([(layer.keys, layer.values) for layer in self.layers])
        self.beside = [list(part.values()) for layer in compressed["layers"] for heads in layer for part in heads]
        for own, decoded in zip(self.layers, self.engine.build_cache(compressed).layers):
            own.keys, own.values = decoded.keys, decoded.values


def turboquant_engine(head_dim, bits, refused, device):
    from turboquant_gpu import TurboQuantEngine
    engine = TurboQuantEngine(head_dim=head_dim, total_bits=bits, device=device)
    probe = torch.randn(64, head_dim, device=device).half()
    try:
        packed = engine._compress_kv_fused(probe, probe)
        engine._decompress_kv_fused(*packed)
        if device != "cpu":
            torch.cuda.synchronize()
    except Exception as error:  # cuda.tile is there and no GPU that it knows: what its fallback does not catch
        refused["turboquant-gpu kernels"] = f"{type(error).__name__}: {str(error)[:300]}; its PyTorch code is run instead"
        engine._force_pytorch = True
    return engine


def turboattn_codec(head_dim, bits, fit, device="cpu"):
    """fit: codebooks of each layer from its prompt, by the package's OnlineCalibrator."""
    from tkv import OnlineCalibrator, TkvCodec

    def make(layer):
        codec = TkvCodec(head_dim=head_dim, bit_width=bits, device=device)
        state = {"fitted": not fit}

        def encode(keys, values):
            if not state["fitted"]:
                calibrator = OnlineCalibrator(num_layers=1, num_kv_heads=keys.shape[1], head_dim=head_dim, bit_width=bits)
                calibrator.collect_for_codec(0, keys[0].transpose(0, 1), values[0].transpose(0, 1), codec)
                names = ("k_centroids", "k_boundaries", "v_centroids", "v_boundaries")
                for name, table in zip(names, calibrator.optimize(0)):
                    setattr(codec, name, torch.as_tensor(table, dtype=torch.float32, device=device))
                state["fitted"] = True
            shape, rows = keys.shape[:3], [x.reshape(-1, head_dim).float() for x in (keys, values)]
            packed = [*codec.compress_k(rows[0]), *codec.compress_v(rows[1])]
            return [x.view(*shape, *x.shape[1:]) for x in packed]

        def decode(packed):
            shape = packed[0].shape[:3]
            k, k_norms, v, v_norms = (x.flatten(0, 2) for x in packed)
            return tuple(x.view(*shape, head_dim) for x in (codec.decompress_k(k, k_norms), codec.decompress_v(v, v_norms)))

        return encode, decode

    return make


def contestants(model, refused):
    """DynamicCache first, then ours, then the others; each `make` takes no arguments."""
    config, device = model.config, model.device.type
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    yield Contestant("DynamicCache", "sdpa", lambda: DynamicCache(config=config))
    for spec in OURS:
        yield Contestant(f"tersekv {spec}", "tersekv", lambda spec=spec: TerseCache.for_model(model, spec))
    try:
        import tiny_turboquant as tiny
        for preset in ("safe", "balanced", "compact", "aggressive"):
            make = lambda preset=preset: _without_options(tiny.TinyKVCache(compression=preset))
            yield Contestant(f"tiny-turboquant {preset}", "sdpa", make)
        yield Contestant("tiny-turboquant safe, patch_model", "sdpa",
                         lambda: _without_options(tiny.TinyKVCache(compression="safe")), tiny.patch_model,
                         tiny.unpatch_model)
    except ImportError as missing:
        refused["tiny-turboquant"] = str(missing)
    for backend, widths in (("quanto", (4, 2)), ("hqq", (8, 4, 3, 2)), ("fp8", (None,))):
        try:
            QuantizedCache(backend=backend, config=config, nbits=widths[0])
        except Exception as error:
            refused[f"QuantizedCache {backend}"] = f"{type(error).__name__}: {error}"
            continue
        for bits in widths:
            yield Contestant(f"QuantizedCache {backend}{'' if bits is None else f' {bits}'}", "sdpa",
                             lambda backend=backend, bits=bits: QuantizedCache(backend=backend, config=config, nbits=bits))
    try:
        import turboquant_gpu  # noqa: F401
        for bits in (4, 3, 2):
            engine = turboquant_engine(head_dim, bits, refused, device)
            yield Contestant(f"turboquant-gpu {bits} generate()", "sdpa",
                             lambda engine=engine: TurboQuantGenerate(config, engine))
            yield Contestant(f"turboquant-gpu {bits} codec", "sdpa",
                             lambda engine=engine: codec_cache(config, lambda _: turboquant_codec(engine)))
    except ImportError as missing:
        refused["turboquant-gpu"] = str(missing)
    try:
        import tkv  # noqa: F401
        for bits in (8, 4, 3, 2):
            for fit in (False, True):
                yield Contestant(f"turbo-attn {bits} codec{', fitted' if fit else ''}", "sdpa",
                                 lambda bits=bits, fit=fit: codec_cache(config, turboattn_codec(head_dim, bits, fit, device)))
    except ImportError as missing:
        refused["turbo-attn"] = str(missing)


def _without_options(cache):
    """tiny-turboquant 0.18.0 knows no further arguments of update()."""
    inner = cache.update
    cache.update = lambda keys, values, layer, *_, **__: inner(keys, values, layer)
    return cache


def quiet_libraries():
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
