# SPDX-License-Identifier: Apache-2.0
"""A profile (docs/calibration.md) for a TerseCache: means and scales of each layer, in place of measured ones."""
from tersekv import _core


def use_profile(cache, profile, layers):
    """profile: a path, or what reports.collect_profile gives. ValueError when it is of another kind of model."""
    if not isinstance(profile, _core.Profile):
        profile = _core.load_profile(str(profile))
    found = profile.layers()
    if len(found) != layers:
        raise ValueError(f"the profile is of a model with {len(found)} attention layers ({profile.model_name}), this "
                         f"one has {layers}")
    heads = getattr(cache.config, "num_key_value_heads", None)
    if heads is not None and found[0]["kv_heads"] != heads:
        raise ValueError(f"the profile is of a model with {found[0]['kv_heads']} KV heads ({profile.model_name}), this "
                         f"one has {heads}")
    names = ("k_mean", "k_scale", "v_mean", "v_scale")
    cache.store.layer_stats = [[layer[name] for name in names] for layer in found]
