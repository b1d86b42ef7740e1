# SPDX-License-Identifier: Apache-2.0
"""How a cache is to be stored, from the ways in which a user may say it."""
from tersekv import _core

PRESETS = ("safe", "balanced", "compact", "aggressive")
DEFAULT = "k4v4"


def choose_spec(kv=None, compression=None, key_bits=None, value_bits=None, bits=None):
    """The canonical spec; ValueError when it is said twice, halfway, or is unknown."""
    if (key_bits is None) != (value_bits is None):
        raise ValueError("key_bits and value_bits are given together, or neither")
    given = [name for name, value in (("kv", kv), ("compression", compression), ("key_bits/value_bits", key_bits),
                                      ("bits", bits)) if value is not None]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} both say how to store the cache: give one of them")
    if compression is not None:
        if compression not in PRESETS:
            raise ValueError(f"compression '{compression}' is not known: one of {', '.join(PRESETS)}; "
                             "or kv= with a spec such as 'k4v4'")
        kv = compression
    if bits is not None:
        kv = "k4v4+mean=profile"  # widths by layer take the place of these
    if key_bits is not None:
        for name, width in (("key_bits", key_bits), ("value_bits", value_bits)):
            if isinstance(width, bool) or not isinstance(width, int) or not 2 <= width <= 8:
                raise ValueError(f"{name}={width!r}: a whole number from 2 to 8; kv= takes other specs")
        kv = f"k{key_bits}v{value_bits}"
    return _core.canonical(DEFAULT if kv is None else kv)


def protected(n_layers, protect_first=0, protect_last=0, protected_layers=()):
    """Numbers of the layers that stay raw, of n_layers cached ones; negative numbers count from the end."""
    for name, count in (("protect_first", protect_first), ("protect_last", protect_last)):
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= n_layers:
            raise ValueError(f"{name}={count!r}: a number of layers from 0 to {n_layers}")
    chosen = {*range(protect_first), *range(n_layers - protect_last, n_layers)}
    for layer in protected_layers:
        if not -n_layers <= layer < n_layers:
            raise ValueError(f"protected layer {layer} is not there: the model has {n_layers} cached layers, "
                             f"{-n_layers} to {n_layers - 1}")
        chosen.add(layer % n_layers)
    return chosen
