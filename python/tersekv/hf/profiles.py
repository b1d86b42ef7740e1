# SPDX-License-Identifier: Apache-2.0
"""A profile (docs/calibration.md) for a TerseCache: means and scales of each layer, in place of measured ones, and the
bits of each layer."""
import hashlib

import torch

from tersekv import _core

PREFIX = "weights:"  # of fingerprints made here; those of GGUF files know other tensors


def fingerprint(model):
    """Of a model's weights: names, shapes and up to 64 values of each parameter. Other weights, another fingerprint."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        flat = weight.detach().flatten()
        digest.update(f"{name} {list(weight.shape)}".encode())
        if flat.numel() > 0 and flat.is_floating_point():
            count, last = min(64, flat.numel()), flat.numel() - 1
            places = torch.arange(count, device=flat.device) * last // max(count - 1, 1)  # exact beyond 2^24 values
            picked = flat[places]
            digest.update(picked.double().cpu().numpy().tobytes())
    return PREFIX + digest.hexdigest()[:32]


def load(profile):
    return profile if isinstance(profile, _core.Profile) else _core.load_profile(str(profile))


def check_model(profile, model):
    """ValueError when the profile was made from other weights. One of a GGUF file is known by its shapes alone."""
    if profile.model_fingerprint.startswith(PREFIX) and (found := fingerprint(model)) != profile.model_fingerprint:
        raise ValueError(f"the profile is of '{profile.model_name}' ({profile.model_fingerprint}), this model is "
                         f"'{getattr(model.config, 'name_or_path', '') or type(model).__name__}' ({found}): measure "
                         "its own with measure_kv_norm_ratio")


def use_profile(cache, profile, layers, bits=None):
    """profile: a path, or what reports.collect_profile gives. bits: average that its table has. ValueError when it is of
    another kind of model."""
    profile = load(profile)
    found = profile.layers()
    if len(found) != layers:
        raise ValueError(f"the profile is of a model with {len(found)} attention layers ({profile.model_name}), this "
                         f"one has {layers}")
    heads = getattr(cache.config, "num_key_value_heads", None)
    width = getattr(cache.config, "head_dim", None)
    for number, layer in enumerate(found):
        for name, want, has in (("KV heads", heads, layer["kv_heads"]), ("channels a key", width, layer["head_dim_k"])):
            if isinstance(want, int) and want != has:
                raise ValueError(f"the profile is of a model with {has} {name} ({profile.model_name}, layer {number}), "
                                 f"this one has {want}")
    names = ("k_mean", "k_scale", "v_mean", "v_scale")
    cache.store.layer_stats = [[layer[name] for name in names] for layer in found]
    if bits is not None:
        cache.store.layer_bits = profile.budget(float(bits))
