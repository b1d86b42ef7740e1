# SPDX-License-Identifier: Apache-2.0
"""The way back: a forward pass that fails in one layer is taken back in all of them."""
import torch


def _holds_state(layer):
    values = [v for value in vars(layer).values() for v in (value.values() if isinstance(value, dict) else [value])]
    return any(torch.is_tensor(value) for value in values)


class Undo:
    """Of one cache. A pass begins with the first update of a layer that the running one has updated already."""

    def __init__(self):
        self.starts, self._before = {}, None  # by layer number: its length before the pass
        self.broken = None

    def check(self):
        if self.broken is not None:
            raise RuntimeError(self.broken)

    def enter(self, cache, layer):
        if layer.index in self.starts:
            self.settle(cache)
        if not self.starts:
            self._before = (cache.slots, cache.stored, len(cache.rows))
        self.starts[layer.index] = layer.length

    def settle(self, cache):
        """What is stored stays."""
        for index in self.starts:
            if (core := cache.store.cores.get(index)) is not None:
                core.settle(cache.rows)
        self.starts.clear()

    def settle_if_whole(self, cache):
        layers = [layer for layer in cache._packed() if layer.is_initialized]
        if len({layer.length for layer in layers}) == 1:
            self.settle(cache)

    def back(self, cache):
        """After a failure: everything as before the pass."""
        if not self.starts:
            return
        starts, self.starts = self.starts, {}
        for index, length in starts.items():
            layer = cache.layers[index]
            layer.length, layer.pending = length, None
            layer.epoch += 1
            if (core := cache.store.cores.get(index)) is not None:
                core.undo(cache.rows)
            elif length == 0:  # another model's keys may come next
                layer.is_initialized, layer.shape = False, None
        cache.slots, cache.stored, rows = self._before
        if rows == 0:
            cache.rows.clear()
        if any(_holds_state(layer) for layer in cache._stock()):
            self.broken = ("a forward pass failed midway, and layers of this model that are not packed (convolutions, "
                           "recurrent states) cannot go back: call reset() and run the prompt again")
