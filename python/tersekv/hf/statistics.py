# SPDX-License-Identifier: Apache-2.0
"""Means and channel scales of one layer on a device, common to the batch: of a profile, or measured once, when the first
token leaves the raw window (without one: on the first chunk)."""
import torch

MOST_TOKENS, LEAST_TOKENS = 4096, 64  # of all rows together, spread over them; fewer: no statistics


class Statistics:
    def __init__(self, core, given):
        self.core, self.source, self.kept = core, "none", []
        off = core.raw or "mean=off" in core.spec
        self.wanted = given is None and not off
        if given is not None and not off:
            shape = core.kv_heads, core.d
            self._set(*(None if not len(s) else torch.tensor(s, dtype=torch.float32).view(shape) for s in given))
            self.source = "profile"

    def bytes(self):
        return sum(x.numel() * 4 for x in self.kept if x is not None)

    def _set(self, k_mean, k_scale, v_mean, v_scale):
        device = self.core.pages.device
        self.kept = [None if x is None else x.to(device, torch.float32).contiguous()
                     for x in (k_mean, k_scale, None if k_scale is None else 1 / k_scale, v_mean, v_scale,
                               None if v_scale is None else 1 / v_scale)]
        self.core.native.set_stats(*(0 if x is None else x.data_ptr() for x in self.kept))

    def measure(self, step, k, v, valid):
        """Before the chunk is packed; False: not yet, raw rows hold all there is, and nothing is packed."""
        core, pages = self.core, self.core.pages
        spans = valid.ranges if valid is not None else [(0, k.shape[2])] * k.shape[0]
        before = {row: pages.lengths[row] - count for row, (_, count) in zip(step.rows, spans)}
        waits = core.rows is not None and core.rows.shape.window >= LEAST_TOKENS
        if waits and not step.reaches_pages(core.rows.shape):
            return False
        parts = [] if core.rows is None else self._held(before)
        for b, (row, (first, count)) in enumerate(zip(step.rows, spans)):
            skipped = min(max(core.sink - before[row], 0), count)  # sinks stay raw
            own = slice(first + skipped, first + count)
            parts.append(tuple(x[b, :, own].transpose(0, 1) for x in (k, v)))
        self._finish(parts, before)
        return True

    def settle(self):
        """Now, of what raw rows hold: nothing is measured later."""
        if self.wanted:
            before = {}
            self._finish([] if self.core.rows is None else self._held(before), before)

    def _held(self, before):
        """Raw rows of all sequences that wait for being packed; `before` gets how long each is."""
        core = self.core
        if core.rows.memory is None:
            return []
        for row, length in core.pages.lengths.items():
            if row in core.pages.places.place:
                before.setdefault(row, length)
        return [tuple(core.rows.held(row, core.sink, length)) for row, length in before.items() if length > core.sink]

    def _finish(self, parts, before):
        self.wanted = False
        total = sum(k.shape[0] for k, _ in parts)
        if total >= LEAST_TOKENS:
            self._measure(parts, total)
        if self.core.rows is not None and self.core.rows.memory is not None:
            for row, length in before.items():
                self.core.pack_held(row, length)

    def _measure(self, parts, total):
        """parts: (K, V) of some tokens each, [tokens, kv_heads, d]."""
        step = -(-total // MOST_TOKENS)
        k, v = (torch.cat([part[side][::step].double() for part in parts], dim=0) for side in (0, 1))
        scale = None
        if "scale=off" not in self.core.spec:
            scale = k.std(dim=0, unbiased=False).sqrt()
            scale = torch.maximum(scale, 1e-3 * scale.amax(dim=1, keepdim=True)).clamp_min(1e-30)
            scale = scale / scale.log().mean(dim=1, keepdim=True).exp()
        self._set(k.mean(dim=0), scale, v.mean(dim=0), None)
        self.source = f"{k.shape[0]} of the first {total} tokens of the batch"
