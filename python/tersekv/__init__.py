# SPDX-License-Identifier: Apache-2.0
"""TerseKV: KV caches that stay packed, and attention straight from the packed bytes.

    from tersekv import TerseCache, patch_model
    patch_model(model)                                    # a Hugging Face model
    model.generate(**inputs, past_key_values=TerseCache.for_model(model, kv="k4v4"))

torch and transformers are imported by what needs them (TerseCache, reports, engine), not by `import tersekv`.
"""
import importlib

from tersekv import _core
from tersekv.codec import Codec

__version__ = _core.version()
canonical = _core.canonical
known_specs = _core.known_specs
num_threads = _core.num_threads
set_num_threads = _core.set_num_threads

_LAZY = {
    "TerseCache": "tersekv.hf.cache",
    "DecodeGraph": "tersekv.hf.graph",
    "patch_model": "tersekv.hf.model",
    "fold_output_rotation": "tersekv.hf.fold",
    "KVNormReport": "tersekv.reports",
    "measure_kv_norm_ratio": "tersekv.reports",
    "recommend_bits": "tersekv.reports",
    "TurboQuantEngine": "tersekv.engine",
}

__all__ = ["Codec", "canonical", "known_specs", "num_threads", "set_num_threads", *_LAZY]


def __getattr__(name):
    if name not in _LAZY:
        raise AttributeError(f"module 'tersekv' has no attribute '{name}'")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__():
    return sorted([*globals(), *_LAZY])
