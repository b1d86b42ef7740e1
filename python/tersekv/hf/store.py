# SPDX-License-Identifier: Apache-2.0
"""The core's side of a TerseCache: one LayerCache a layer over shared memory. Deep copies of a cache share it, also in
other threads: calls into the core take turns."""
import itertools
import threading

from tersekv import _core

# Newest tokens that a sliding layer can crop off again, in raw rows beside its window: some steps, or a draft.
ROLLBACK_TOKENS, DRAFT_TOKENS = 64, 256

def takes_pages(device):
    """Whether layers on this torch device keep pages in its memory (device.py)."""
    return device.type != "cpu"


class Store:
    def __init__(self, prefill, arithmetic, byte_budget, layer_bits=None, layer_stats=None, values_rotated=False):
        self.memory = _core.Memory(byte_budget)
        self.prefill, self.arithmetic = prefill, arithmetic
        self.layer_bits, self.layer_stats = layer_bits, layer_stats  # by ordinal, of a profile
        self.values_rotated = values_rotated  # by the model: fold.py
        self.cores, self.rollbacks = {}, {}  # by layer number; of sliding layers
        self.byte_budget, self.pages = byte_budget, None  # pages: on a CUDA device (pages.py)
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
        if layer.on_device:
            return self._make_device(layer, heads)
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

    def _make_device(self, layer, heads):
        from tersekv.hf.device import DeviceCore, Pages
        from tersekv.hf.raw import raw_shape
        if self.byte_budget:
            raise ValueError(f"byte_budget={self.byte_budget} counts memory of the CPU's cache: on CUDA leave it 0 and "
                             "use torch.cuda.set_per_process_memory_fraction")
        if self.layer_bits is not None:
            raise ValueError("bits= by layer and head are for CPU caches: on CUDA name one width with kv=")
        if self.values_rotated:
            raise ValueError("fold_output_rotation is for CPU caches: on CUDA leave it out; unfold() the model if it is "
                             "folded")
        if self.pages is None:
            self.pages = Pages(layer.device, raw=raw_shape(layer.owner.spec), layers=len(layer.owner._packed()))
        if self.pages.device != layer.device:
            raise ValueError(f"layer {layer.index} is on {layer.device}, earlier ones on {self.pages.device}: a TerseCache "
                             "takes models on one CUDA device; use DynamicCache, or device_map on one device")
        stats = None if self.layer_stats is None else self.layer_stats[layer.ordinal]
        self.rollbacks[layer.index] = 1 << 62  # nothing is given back behind a window
        core = self.cores[layer.index] = DeviceCore(self.pages, layer, heads or layer.owner.query_heads(layer.shape[0]),
                                                    stats)
        self.pages.join(core)
        return core

    def crop(self, sequences, keep, stored):
        """Slots from `keep` on are forgotten."""
        if self.pages is not None:
            for b, sequence in enumerate(sequences):
                self.pages.crop(sequence, keep if stored is None else int(stored[b, :keep].sum()))
            return
        for core in list(self.cores.values()):
            for sequence in sequences:
                core.crop(sequence, keep)

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
