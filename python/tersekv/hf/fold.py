# SPDX-License-Identifier: Apache-2.0
"""The rotation of the values, taken into a model's weights.

Packed values are rotated before they are coded, and every output of attention is rotated back. With R orthogonal,
v_proj' = R v_proj (and its bias) and o_proj' = o_proj R^T give the same model whatever its cache and attention, and its
values come rotated: a TerseCache of fold_output_rotation=True then rotates neither them nor outputs, nor the raw window.
"""
import weakref

import torch

from tersekv import _core
from tersekv.hf import compat

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
PACKED_TYPES = ("full_attention", "sliding_attention")
PROBE_TOKENS = 12
_FOLDS = {}  # id of a decoder's config -> (weak reference to it, Fold)


def of(config):
    """The Fold of the model that has this config, or None."""
    config = compat.decoder_config(config)
    known = _FOLDS.get(id(config))
    return known[1] if known is not None and known[0]() is config else None


def any_known():
    return bool(_FOLDS)


def check_spec(spec):
    if not _core.spec_rotates(spec):
        raise ValueError(f"fold_output_rotation=True: '{spec}' does not rotate values, so there is nothing to fold; "
                         "leave it False, or use a spec such as 'k4v4'")


def demand(config, spec, profile):
    """The Fold that a cache of this spec relies on; ValueError when it cannot."""
    check_spec(spec)
    found = None if config is None else of(config)
    if found is None:
        raise ValueError("fold_output_rotation=True changes a model's weights: use TerseCache.for_model(model, ...), or "
                         "call tersekv.fold_output_rotation(model) before")
    if profile is not None:
        from tersekv.hf import profiles
        if not profiles.load(profile).model_fingerprint.startswith(profiles.PREFIX):
            raise ValueError("the profile is of a GGUF file, whose values are not rotated as those of the folded model: "
                             "measure the folded model with measure_kv_norm_ratio, or leave fold_output_rotation False")
    return found


def rotation(d):
    """[d, d] orthogonal, float64, always the same: Hadamard with random signs, of other sizes a random one."""
    generator = torch.Generator().manual_seed(d)
    if d & (d - 1) == 0:
        matrix = torch.ones(1, 1, dtype=torch.float64)
        while matrix.shape[0] < d:
            matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
        signs = torch.randint(0, 2, (d,), generator=generator).double() * 2 - 1
        return matrix * signs * d ** -0.5
    q, r = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64))
    return q * r.diagonal().sign()


class Fold:
    """What fold_output_rotation() did; unfold() takes it back."""

    def __init__(self, model, changes):
        self._model, self._changes, self.active = weakref.ref(model), changes, False
        self._originals = [(part, part.detach().clone()) for part, *_ in changes]

    def __repr__(self):
        return f"Fold({len(self._changes)} parameters, {'active' if self.active else 'taken back'})"

    @torch.no_grad()
    def _apply(self, back):
        for part, side, first, heads, d in self._changes:
            matrix = rotation(d).to(part.device)
            if side == "v":  # rows [first, first + heads * d) of the weight or the bias
                rows = part[first:first + heads * d]
                turned = (matrix.T if back else matrix) @ rows.double().reshape(heads, d, -1)
                rows.copy_(turned.reshape(rows.shape))
            else:
                turned = part.double().reshape(-1, heads, d) @ (matrix if back else matrix.T)
                part.copy_(turned.reshape(part.shape))

    def unfold(self):
        """The weights as they were: exactly with keep_originals=True, otherwise but for one rounding of their dtype.

        Caches that hold values of the folded model refuse to go on.
        """
        model = self._model()
        if not self.active or model is None:
            raise ValueError("this fold was taken back already" if model is not None else "the folded model is gone")
        self._take_back()

    def _take_back(self):
        if self._originals is None:
            self._apply(back=True)
        else:
            with torch.no_grad():
                for part, original in self._originals:
                    part.copy_(original)
        self.active = False
        _FOLDS.pop(id(compat.decoder_config(self._model().config)), None)


def _plain(name, module):
    """ValueError unless the module's weights may be replaced by rotated ones."""
    weight = getattr(module, "weight", None)
    kind = f"{type(module).__module__}.{type(module).__name__}"
    if type(module) is not torch.nn.Linear or type(weight) is not torch.nn.Parameter or weight.dtype not in FLOATS:
        dtype = getattr(weight, "dtype", None)
        raise ValueError(f"fold_output_rotation: {name} is a {kind} of {str(dtype).removeprefix('torch.')} weights: only a "
                         "plain torch.nn.Linear of float32, float16 or bfloat16 takes a rotation in. Fold before "
                         "quantising or adapting it, or leave fold_output_rotation False")
    if weight.device.type == "meta":
        raise ValueError(f"fold_output_rotation: {name} is offloaded: load the model whole")


def _changes_of(model):
    """[(parameter, 'v' or 'o', first row, heads, head_dim)], each parameter once."""
    decoder = compat.decoder_config(model.config)
    plan = compat.layer_plan(decoder)
    wanted = {index for index, (kind, _) in enumerate(plan) if kind in PACKED_TYPES}
    layers = decoder.num_hidden_layers
    shared = set(range(layers - (getattr(decoder, "num_kv_shared_layers", 0) or 0), layers))  # with values of others
    wanted |= shared
    names = {id(module): name for name, module in model.named_modules()}
    changes, done, found = [], {}, set()

    def add(name, part, *change):
        if done.setdefault(id(part), change) != change:
            raise ValueError(f"fold_output_rotation: {name} shares its weights with another projection that would turn "
                             "them otherwise: leave it False")
        if not any(part is known for known, *_ in changes):
            changes.append((part, *change))

    for name, module in model.named_modules():
        layer = getattr(module, "layer_idx", None)
        out = getattr(module, "o_proj", None) or getattr(module, "out_proj", None)
        if layer not in wanted or out is None:
            continue
        value, fused = getattr(module, "v_proj", None), getattr(module, "qkv_proj", None)
        if value is None and fused is None and layer not in shared:
            continue
        d = getattr(module, "head_dim", None) or decoder.hidden_size // decoder.num_attention_heads
        groups = getattr(module, "num_key_value_groups", None) or \
            decoder.num_attention_heads // decoder.num_key_value_heads
        _plain(names[id(out)], out)
        heads = out.in_features // d
        if out.in_features % d != 0 or heads % groups != 0:
            raise ValueError(f"fold_output_rotation: {names[id(out)]} takes {out.in_features} channels, no whole heads of "
                             f"{d}")
        kv_heads = heads // groups
        add(names[id(out)], out.weight, "o", 0, heads, d)
        source = value if value is not None else fused
        if source is not None:
            _plain(names[id(source)], source)
            first = source.out_features - kv_heads * d
            if first != (0 if value is not None else (heads + kv_heads) * d):
                raise ValueError(f"fold_output_rotation: {names[id(source)]} gives {source.out_features} channels for "
                                 f"{kv_heads} KV heads of {d}")
            for part in (source.weight, source.bias):
                if part is not None:
                    add(names[id(source)], part, "v", first, kv_heads, d)
        found.add(layer)
    if missing := sorted(wanted - found):
        raise ValueError(f"fold_output_rotation: attention of layer {missing[0]} of {type(model).__name__} has no v_proj (or "
                         "qkv_proj) and o_proj (or out_proj): leave it False")
    used = [(name, part) for name, part in model.named_parameters(remove_duplicate=False)
            if any(part is known for known, *_ in changes)]
    for name, part in used:
        if not name.rsplit(".", 1)[0].endswith(("v_proj", "qkv_proj", "o_proj", "out_proj")):
            raise ValueError(f"fold_output_rotation: {name} shares weights with a projection that would be rotated: leave "
                             "it False")
    return changes


@torch.no_grad()
def _answer(model):
    device = next(model.parameters()).device
    ids = (torch.arange(PROBE_TOKENS, device=device) * 7 + 3)[None] % compat.decoder_config(model.config).vocab_size
    was = model.training
    try:
        return model.eval()(input_ids=ids, use_cache=False).logits.double()
    finally:
        model.train(was)


def fold_output_rotation(model, keep_originals=False):
    """Takes the rotation of packed values into v_proj and o_proj of `model`, in place -> Fold, with unfold().

    The model computes what it did, up to rounding of the weights' dtype; a probe of a few tokens holds it to that, and a
    model in which something else stands between v_proj and o_proj (gates, norms) is left as it was, with a ValueError.
    keep_originals: unfold() is exact, for a copy of the changed weights, which is there while this runs anyway.
    """
    config = compat.decoder_config(model.config)
    if of(config) is not None:
        raise ValueError(f"{type(model).__name__} is folded already: its Fold's unfold() takes it back")
    fold = Fold(model, _changes_of(model))
    before = _answer(model)
    fold.active = True
    try:
        fold._apply(back=False)
        after = _answer(model)
    except BaseException:
        fold._take_back()
        raise
    spread = (before - before.mean(-1, keepdim=True)).square().mean().sqrt()
    error = float((after - before).square().mean().sqrt() / spread)
    most = 1e-3 if all(part.dtype == torch.float32 for part, *_ in fold._changes) else 0.1
    if not error <= most:
        fold._take_back()
        raise ValueError(f"fold_output_rotation: logits of {type(model).__name__} would change by {error:.2g} of their "
                         f"spread (rounding explains {most}): more than a product stands between v_proj and o_proj; the "
                         "weights are as before, leave it False")
    _FOLDS[id(config)] = (weakref.ref(config), fold)
    if not keep_originals:
        fold._originals = None
    return fold
