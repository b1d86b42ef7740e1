# SPDX-License-Identifier: Apache-2.0
"""What TerseCache.update() returns in place of keys and values: tensors without storage that know their layer.

The attention function `tersekv` recognises them and computes from packed pages. Any other operation on a handle decodes
the whole history once (with a warning) and goes on with plain tensors, so that other code stays correct.
"""
import torch
from torch.utils._pytree import tree_map_only

aten = torch.ops.aten


class Pending:
    """One update() of a layer: the chunk's own keys and values, raw, until attention has taken them."""

    def __init__(self, layer, k, v, low, start):
        self.layer, self.k, self.v, self.low, self.start = layer, k, v, low, start
        self.end = start + k.shape[-2]
        self.epoch, self.appended = layer.epoch, False
        self._dense = {}

    def check(self):
        if self.epoch != self.layer.epoch:
            raise RuntimeError("stale KV handle: its cache was cropped, reordered or reset since")

    def dense(self, side):
        """[batch, kv_heads, end - low, head_dim]: history decoded, the chunk as it was given."""
        self.check()
        if side not in self._dense:
            raw = self.k if side == "k" else self.v
            history = self.layer.read(side, self.low, self.start, raw) if self.start > self.low else None
            self._dense[side] = raw if history is None else torch.cat([history, raw], dim=-2)
        return self._dense[side]


class KVHandle(torch.Tensor):
    """Keys (side 'k') or values of one layer: [batch, kv_heads, kv_len, head_dim], no storage."""

    @staticmethod
    def __new__(cls, pending, side):
        raw = pending.k if side == "k" else pending.v
        shape = (raw.shape[0], raw.shape[1], pending.end - pending.low, raw.shape[3])
        handle = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=raw.dtype, device=raw.device)
        handle.pending, handle.side = pending, side
        return handle

    __torch_function__ = torch._C._disabled_torch_function_impl

    def dense(self):
        self.pending.layer.explain("a tensor operation other than the attention function 'tersekv'")
        return self.pending.dense(self.side)

    def __setitem__(self, key, value):
        raise RuntimeError("KV handles are read-only: .clone() gives a plain tensor")

    def __dlpack__(self, *arguments, **options):  # the default would export a null pointer
        return self.dense().__dlpack__(*arguments, **options)

    def __reduce_ex__(self, protocol):
        raise TypeError("a KV handle cannot be pickled: it lives in its cache; use .clone() for a plain tensor")

    def __deepcopy__(self, memo):
        return self.dense().clone()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (aten.detach.default, aten.alias.default):
            return KVHandle(args[0].pending, args[0].side)
        if func._schema.is_mutable:
            for value, argument in zip(args, func._schema.arguments):
                if isinstance(value, KVHandle) and argument.alias_info is not None and argument.alias_info.is_write:
                    raise RuntimeError(f"{func} would write into a KV handle: they are read-only")
        args, kwargs = tree_map_only(KVHandle, lambda handle: handle.dense(), (args, kwargs or {}))
        return func(*args, **kwargs)

    def __repr__(self, *, tensor_contents=None):
        p = self.pending
        return f"KVHandle('{self.side}', {tuple(self.shape)}, {self.dtype}, slots {p.low} to {p.end})"
