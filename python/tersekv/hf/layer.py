# SPDX-License-Identifier: Apache-2.0
"""One packed attention layer of a TerseCache, by the contract of Transformers' CacheLayerMixin.

A slot is a place in the batch's common time axis, padding included; a sequence in the core holds only the tokens of its
row that are no padding, at their slots as positions. So rows of a padded batch hold what they would hold alone.
"""
import warnings
import weakref

import torch
from transformers.cache_utils import CacheLayerMixin

from tersekv import _arrays, _core
from tersekv.hf.chunk import attend_chunk
from tersekv.hf.dense import dense_attention
from tersekv.hf.handle import KVHandle, Pending
from tersekv.hf.masks import TerseMask
from tersekv.hf.pages import MOST_QUERIES
from tersekv.hf.store import takes_pages

WRITE_TOKENS = 512  # of a batch at a time: scratch of the core stays small
RELEASE_TOKENS = 1024


def describe(x):
    """(address, dtype, byte strides of batch, head, token) for the core; x: [batch, heads, tokens, d], d together."""
    size = x.element_size()
    b, h, t, _ = x.stride()
    return x.data_ptr(), _arrays.dtype_code(x), b * size, h * size, t * size


def together(x):
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _pieces(rows, n):
    """(first slot, slots, rows of core_rows) of steps of about WRITE_TOKENS tokens in all rows together."""
    size = max(WRITE_TOKENS // max(len(rows), 1), 16)
    for low in range(0, n, size):
        high = min(low + size, n)
        part = []
        for seq, first, tokens, position in rows:
            begin, end = max(first, low), min(first + tokens, high)
            part.append((seq, begin - low, end - begin, position + begin - first) if begin < end else (seq, 0, 0, 0))
        yield low, high - low, part


class TerseLayer(CacheLayerMixin):
    is_compileable = False
    is_croppable = True
    supports_early_init = False

    def __init__(self, owner, index, ordinal, spec, window=None):
        self.is_initialized = False  # the mixin's __init__ would assign keys and values
        self.index, self.ordinal, self.spec, self.window = index, ordinal, spec, window
        self.owner = owner
        self.is_sliding = window is not None
        self.length, self.epoch, self.record_past = 0, 0, False
        self.pending = self.shape = self.dtype = None

    def __repr__(self):
        return f"TerseLayer({self.index}, '{self.spec}'{f', window={self.window}' if self.window else ''})"

    @property
    def owner(self):
        cache = self._owner()
        if cache is None:
            raise RuntimeError(f"the cache of layer {self.index} is gone: keep the TerseCache as long as its layers")
        return cache

    @owner.setter
    def owner(self, cache):
        self._owner = weakref.ref(cache)

    # -- what Transformers asks ----------------------------------------------------------------------------------------
    keys = property(lambda self: self._all("k"))
    values = property(lambda self: self._all("v"))

    def _all(self, side):
        self.flush()
        if not self.is_initialized:
            return None
        empty = torch.empty(len(self.owner.rows), self.shape[0], 0, self.shape[1 if side == "k" else 2],
                            dtype=self.dtype, device=self.device)
        return self.read(side, self._low(), self.length, empty)

    def lazy_initialization(self, key_states, value_states):
        self.dtype, self.device = key_states.dtype, key_states.device
        self.on_device = takes_pages(self.device)
        self.shape = (key_states.shape[1], key_states.shape[3], value_states.shape[3])
        self.is_initialized = True

    def _low(self):
        """First slot that the next query can still see."""
        return max(self.length - self.window + 1, 0) if self.is_sliding else 0

    def get_mask_sizes(self, query_length):
        if not isinstance(query_length, int):
            query_length = query_length.shape[0]
        return self.length - self._low() + query_length, self._low()

    def get_seq_length(self):
        return self.length

    def get_max_length(self):
        return self.window if self.is_sliding else -1

    get_max_cache_shape = get_max_length

    def activate_past_recording(self):
        self.record_past = True

    def offload(self):
        raise ValueError("a TerseCache does not offload: it is packed memory of this process already")

    prefetch = offload

    def _whole(self, *_):
        raise RuntimeError("a TerseCache keeps its layers in step: call this on the cache, not on one layer")

    reset = reorder_cache = batch_repeat_interleave = batch_select_indices = crop = _whole

    # -- a step --------------------------------------------------------------------------------------------------------
    def update(self, key_states, value_states, *_, **__):
        owner = self.owner
        try:
            return self._update(owner, key_states, value_states)
        except BaseException as error:
            self._failed(owner, error)
            raise

    def _update(self, owner, key_states, value_states):
        owner.undo.check()
        self.flush()
        owner.undo.enter(owner, self)
        owner.check_fold(None)
        self._check(key_states, value_states)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        owner.open_batch(key_states.shape[0])
        pending = Pending(self, together(key_states.detach()), together(value_states.detach()), self._low(),
                          self.length)
        self.length = pending.end
        wants_grad = torch.is_grad_enabled() and (key_states.requires_grad or value_states.requires_grad)
        other = owner.foreign_attention()
        self.pending = pending
        if not wants_grad and other is None:
            return KVHandle(pending, "k"), KVHandle(pending, "v")
        self.explain("gradients" if other is None else f"attention '{other}'")
        keys, values = pending.dense("k"), pending.dense("v")
        n = key_states.shape[-2]
        self._append(pending, None)
        self.pending = None
        if wants_grad:  # the chunk keeps its graph
            keys = torch.cat([keys[..., :-n, :], key_states], dim=-2)
            values = torch.cat([values[..., :-n, :], value_states], dim=-2)
        return keys, values

    def _failed(self, owner, error):
        """All layers go back to before the forward pass."""
        error.add_note(f"in layer {self.index} of the TerseCache")
        owner.undo.back(owner)

    def _check(self, k, v):
        for name, x in (("keys", k), ("values", v)):
            if x.ndim != 4:
                raise ValueError(f"{name} have shape {list(x.shape)}: [batch, kv_heads, tokens, head_dim] is needed")
            if (kind := _arrays.check_device(x.device)) != (self.owner.device or kind):
                raise ValueError(f"{name} are on {x.device}, the cache was made with device='{self.owner.device}': leave "
                                 "device out, or move the model")
            if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
                raise TypeError(f"{name} are {str(x.dtype).removeprefix('torch.')}: the cache takes float32, float16 "
                                "and bfloat16; load the model in one of them")
        if k.shape[:3] != v.shape[:3]:
            raise ValueError(f"keys have shape {list(k.shape)} and values {list(v.shape)}: batch, heads and tokens "
                             "must be the same")
        shape = (k.shape[1], k.shape[3], v.shape[3])
        if self.is_initialized and shape != self.shape:
            raise ValueError(f"layer {self.index} holds {self.shape[0]} KV heads of {self.shape[1]} and "
                             f"{self.shape[2]} channels, and got {shape[0]} of {shape[1]} and {shape[2]}: "
                             "a cache belongs to one model; make another one for another model")

    def flush(self):
        """Keys and values that no attention asked for are stored, as if there were no padding."""
        pending = self.pending  # another thread may be copying the cache too
        if pending is not None and not pending.appended:
            self._append(pending, None)
        self.pending = None

    def core(self, heads=None):
        return self.owner.store.core(self, heads)

    def attend(self, pending, query, mask, *, config, scale, causal, window, softcap, sinks):
        """query: [batch, heads, queries, d] -> [batch, queries, heads, d]; stores the chunk when that is still to do.

        config: of the module that asks.
        """
        pending.check()
        owner = self.owner
        try:
            return self._attend(pending, query, mask, config, scale, causal, window, softcap, sinks)
        except BaseException as error:
            self._failed(owner, error)
            raise

    def _attend(self, pending, query, mask, config, scale, causal, window, softcap, sinks):
        self.owner.check_model(config)
        n, start = pending.end - pending.start, pending.start
        _arrays.check_device(query.device)
        window = self.window if window is None else window
        tensor = None
        if isinstance(mask, TerseMask):
            if mask.shape[3] != pending.end - pending.low or mask.shape[0] not in (1, query.shape[0]):
                raise ValueError(f"layer {self.index}: the mask is for {mask.shape[3]} slots, the cache has "
                                 f"{pending.end - pending.low}: was it made for another cache?")
            window, tensor = mask.window, mask.tensor
        elif isinstance(mask, torch.Tensor):
            tensor, keys = mask, pending.end - pending.low
            if mask.ndim != 4 or mask.shape[0] not in (1, query.shape[0]) or mask.shape[2] not in (1, query.shape[2]) or \
                    mask.shape[3] < keys or (mask.shape[3] > keys and not self.is_sliding):
                raise ValueError(f"layer {self.index}: the mask has shape {list(mask.shape)}, and {query.shape[0]} rows of "
                                 f"{query.shape[2]} queries over {keys} keys need [{query.shape[0]}, 1, "
                                 f"{query.shape[2]}, {keys}]")
        if self.is_sliding:  # what is behind it was given back
            window = min(window or self.window, self.window)
        core = self.core(query.shape[1])
        device = self.on_device
        valid = None if device and core.pages.static is not None else self.owner.plan(mask, pending)
        rows = None if device else self.owner.core_rows(valid, start, n)
        reason = None
        if tensor is not None:
            reason = "a mask that is not causal or sliding"
        elif valid is not None and valid.masked_history:
            reason = "a mask that hides tokens which the cache holds"
        elif not causal and n > 1:
            reason = "attention that is not causal"
        elif query.shape[2] != n:
            reason = f"{query.shape[2]} queries over {n} new tokens"
        elif pending.appended and (core.needs_history(n, self.owner.prefill) if device else (
                n > 1 or self.spec.startswith("kivi") or "mean=page" in self.spec)):
            reason = "keys and values shared by several layers"
        first_chunk = self.owner.prefill == "raw" and n > 1 and not self.owner.holds_tokens(start)
        if reason is None and not first_chunk and device:
            return self._attend_device(core, pending, valid, query.detach(), scale, window, softcap, sinks)
        if reason is None and not first_chunk:
            if pending.appended:  # of a layer that shares its keys and values: the last token once more
                for seq, _, count, _ in rows:
                    core.truncate(seq, core.length(seq) - count)
            if self._read_again(n):
                pending.dense("k"), pending.dense("v")
            out = torch.empty(query.shape[0], n, query.shape[1], pending.v.shape[3], dtype=query.dtype)
            self._step(core, rows, n, pending, together(query.detach()), out, scale, window, softcap, sinks)
            self._note(pending, valid)
            return out
        if reason is not None and not first_chunk:
            self.explain(reason)
        padding = None
        if isinstance(mask, TerseMask) and mask.padding is not None:
            padding = mask.padding
        out = dense_attention(query, pending.dense("k"), pending.dense("v"), scale=scale, causal=causal,
                              window=window, padding=padding, mask=tensor, softcap=softcap, sinks=sinks)
        self._append(pending, valid)
        if not self._read_again(n):
            pending._dense.clear()
        return out

    def _attend_device(self, core, pending, valid, query, scale, window, softcap, sinks):
        n = pending.end - pending.start
        step = core.pages.step_for(self.owner.rows, pending.start, n, valid)
        raw, options = self.owner.prefill == "raw" and n > MOST_QUERIES, (scale, window, softcap, sinks)
        if n <= MOST_QUERIES and not core.by_tiles(n, valid, raw) or core.rows is None and not core.by_tiles(n, valid, raw):
            self._append(pending, valid)
            return core.attend(step, query, *options)
        if core.no_kernel is not None:
            self.explain(f"no CUDA kernel ({core.no_kernel})", "a tile at a time", "slower")
        if not pending.appended:
            core.append(step, pending.k, pending.v, valid, remember=False)
        if core.by_tiles(n, valid, raw):
            out = attend_chunk(core, step, pending, query, None if valid is None else valid.ranges, raw, *options)
            if not pending.appended:
                core.remember(step, pending.k, pending.v)
        else:
            out = core.attend_pieces(step, pending.k, pending.v, query, *options)
        self._note(pending, valid)
        return out

    def _read_again(self, n):
        """Layers that share these keys and values will decode the window before the chunk, which is given back then."""
        return self.is_sliding and n > 1 and bool(getattr(self.owner.config, "num_kv_shared_layers", 0))

    def _append(self, pending, valid):
        if pending.appended:
            return
        n = pending.end - pending.start
        core = self.core()
        if self.on_device:
            core.append(core.pages.step_for(self.owner.rows, pending.start, n, valid), pending.k, pending.v, valid)
            self._note(pending, valid)
            return
        for first, count, rows in _pieces(self.owner.core_rows(valid, pending.start, n), n):
            core.step(rows, count, *(describe(x[:, :, first:first + count]) for x in (pending.k, pending.v)),
                      undo=self._can_go_back())
        self._note(pending, valid)

    def _can_go_back(self):
        """Its forward pass has not ended: flush() may come later, and nobody would settle what is kept then."""
        return self.index in self.owner.undo.starts

    def _step(self, core, rows, n, pending, query, out, scale, window, softcap, sinks):
        logits = [] if sinks is None else sinks.detach().float().flatten().tolist()
        out = out.transpose(1, 2)
        # What a prompt's own tokens see depends on the step with prefill="raw" alone.
        pieces = [(0, n, rows)] if self.owner.prefill == "raw" else _pieces(rows, n)
        for first, count, part in pieces:
            arrays = (describe(x[:, :, first:first + count]) for x in (pending.k, pending.v, query, out))
            core.step(part, count, *arrays, scale, window or 0, softcap or 0.0, logits,
                      undo=self._can_go_back())
        if n > RELEASE_TOKENS:
            self.owner.store.memory.release_scratch()

    def _note(self, pending, valid):
        if not pending.appended:
            pending.appended = True
            self.owner.note(pending.start, pending.end, valid)

    # -- the way back --------------------------------------------------------------------------------------------------
    def read(self, side, low, high, like):
        """Slots [low, high) decoded: [batch, kv_heads, high - low, d] in the dtype of `like`; padding is 0."""
        d = like.shape[3]
        if self.on_device and high > low:
            return self.core().read(self.owner.rows, low, high, like, self.owner.stored)["kv".index(side)]
        out = torch.empty(len(self.owner.rows), self.shape[0], high - low, d, dtype=like.dtype, device=like.device)
        if high > low:
            self.core().read(side, self.owner.rows, low, high - low, describe(out))
        return out

    def explain(self, reason, how="to plain tensors", price="slow, and it takes memory meanwhile"):
        """Says once a cache and reason that the fast way is not taken."""
        if reason not in self.owner.explained:
            self.owner.explained.add(reason)
            warnings.warn(f"TerseCache decodes its whole history {how} because of {reason}: correct, but {price}",
                          RuntimeWarning, stacklevel=3)

    def usage(self):
        self.flush()
        core = self.owner.store.cores.get(self.index)
        return None if core is None else core.usage()


def simd_backend():
    targets = _core.simd_targets()
    return f"cpu ({targets[0]})" if targets else "cpu"
