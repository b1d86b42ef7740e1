# SPDX-License-Identifier: Apache-2.0
"""The core's side of a TerseCache: one LayerCache a layer over shared memory. Deep copies of a cache share it, also in
other threads: calls into the core take turns."""
import itertools
import threading

from tersekv import _core

# Newest tokens that a sliding layer can crop off again, in raw rows beside its window: some steps, or a draft.
ROLLBACK_TOKENS, DRAFT_TOKENS = 64, 256

class Store:
    def __init__(self, prefill, arithmetic, byte_budget, layer_bits=None, layer_stats=None, values_rotated=False):
        self.memory = _core.Memory(byte_budget)
        self.prefill, self.arithmetic = prefill, arithmetic
        self.layer_bits, self.layer_stats = layer_bits, layer_stats  # by ordinal, of a profile
        self.values_rotated = values_rotated  # by the model: fold.py
        self.cores, self.rollbacks = {}, {}  # by layer number; of sliding layers
        self._ids = itertools.count()
        self.lock = threading.RLock()  # finalizers run anywhere, so remove() does without

    def core(self, layer, heads):
        """The layer's cache; made at first use, because only attention knows the number of query heads."""
        core = self.cores.get(layer.index)
        if core is None:
            with self.lock:
                core = self.cores.get(layer.index) or self._make(layer, heads)
        if heads is not None and core.heads != heads:
            core.set_heads(heads)
        return core

    def _make(self, layer, heads):
        kv_heads, dk, dv = layer.shape
        options = {}
        if layer.is_sliding:
            self.rollbacks[layer.index] = DRAFT_TOKENS if layer.record_past else ROLLBACK_TOKENS
            options.update(window=layer.window, rollback=self.rollbacks[layer.index])
        if self.layer_bits is not None and layer.spec.startswith("k"):
            options["bits"] = self.layer_bits[layer.ordinal]
        if self.layer_stats is not None and not _core.spec_is_raw(layer.spec):
            options["stats"] = self.layer_stats[layer.ordinal]
        if self.values_rotated and not _core.spec_is_raw(layer.spec):
            options["values_rotated"] = True
        core = _core.LayerCache(self.memory, layer.spec, heads or layer.owner.query_heads(kv_heads), kv_heads, dk, dv,
                                layer.ordinal, self.prefill, self.arithmetic, **options)
        self.cores[layer.index] = core
        return core

    def new_sequence(self):
        return next(self._ids)

    def forks(self, sequences):
        """A copy of each, or none and an error."""
        copies = []
        try:
            for sequence in sequences:
                copies.append(self.new_sequence())
                for core in list(self.cores.values()):
                    core.fork(sequence, copies[-1])
        except BaseException:
            self.remove(copies)
            raise
        return copies

    def remove(self, sequences):
        for sequence in sequences:
            for core in list(self.cores.values()):
                core.remove(sequence)
