# SPDX-License-Identifier: Apache-2.0
"""The mask function `tersekv`: says what a mask is instead of drawing it.

Transformers calls it once a forward pass and layer type; modules only pass the result on to attention.
"""
import torch
import transformers.masking_utils as masking

from tersekv.hf import compat
from tersekv.hf.dense import allowed


def classify(function):
    """'causal', 'sliding', 'bidirectional', or 'other' (chunks, packed sequences, custom ones), from its closures."""
    if function is masking.causal_mask_function:
        return "causal"
    if function is masking.bidirectional_mask_function:
        return "bidirectional"
    if function.__qualname__.startswith("and_masks"):
        parts = [part for cell in function.__closure__ or () if isinstance(cell.cell_contents, tuple)
                 for part in cell.cell_contents]
        others = [part for part in parts if part is not masking.causal_mask_function]
        if len(parts) == 2 and len(others) == 1 and others[0].__qualname__.startswith("sliding_window_overlay"):
            return "sliding"
    return "other"


def sliding_size(function):
    """The window of a function that classify() calls 'sliding'."""
    for cell in function.__closure__:
        for part in cell.cell_contents:
            if part.__qualname__.startswith("sliding_window_overlay"):
                return int(part.__closure__[0].cell_contents)
    raise ValueError("not a sliding mask")


class TerseMask:
    """Slots [low, low + kv_length) of a batch under queries of the last q_length of them.

    kind: 'causal' or 'sliding' with `window` and `padding` ([batch, kv_length] bool, or None: none), or 'dense' with
    `tensor`. `plans` is for caches: what they made of it.
    """

    def __init__(self, kind, batch, q_length, kv_length, low, window=None, padding=None, tensor=None):
        self.kind, self.low, self.window, self.padding, self.tensor = kind, low, window, padding, tensor
        self.shape = (batch, 1, q_length, kv_length)
        self.plans = {}

    ndim = 4

    def to(self, device, *_, **__):
        """accelerate moves what has .to()."""
        move = lambda t: None if t is None else t.to(device)
        batch, _, q_length, kv_length = self.shape
        return TerseMask(self.kind, batch, q_length, kv_length, self.low, self.window, move(self.padding),
                         move(self.tensor))

    def draw(self):
        """[batch or 1, 1, q_length, kv_length] bool, True: seen."""
        if self.kind == "dense":
            return self.tensor
        _, _, q_length, kv_length = self.shape
        device = "cpu" if self.padding is None else self.padding.device
        return allowed(0, q_length, kv_length, q_length, True, self.window, self.padding, device)

    def __getitem__(self, key):
        """Models that attend with some of the queries only (Gemma 4) slice masks: a drawn one then."""
        drawn = self.draw()
        part = drawn[key]
        return self if part.shape == drawn.shape else part

    def __repr__(self):
        return f"TerseMask({self.kind}, {self.shape}, window={self.window}, padded={self.padding is not None})"


@torch.compiler.disable(reason=compat.NO_GRAPH)
def make_mask(batch_size, q_length, kv_length, q_offset=0, kv_offset=0, mask_function=masking.causal_mask_function,
              attention_mask=None, use_vmap=False, **others):
    if isinstance(attention_mask, TerseMask):  # generate() with a static cache makes masks before the model does
        return attention_mask
    if attention_mask is not None and attention_mask.shape[0] not in (1, batch_size):
        raise ValueError(f"the attention mask has {attention_mask.shape[0]} rows, the batch {batch_size}")
    kind = "other" if use_vmap else classify(mask_function)
    if kind in ("causal", "sliding") and int(q_offset) + q_length == int(kv_offset) + kv_length:
        padding = attention_mask
        if padding is not None:
            padding = padding[:, kv_offset:kv_offset + kv_length]
            if padding.shape[1] < kv_length:
                padding = torch.nn.functional.pad(padding, (0, kv_length - padding.shape[1]), value=False)
            if padding.all():
                padding = None
        window = sliding_size(mask_function) if kind == "sliding" else None
        return TerseMask(kind, batch_size, q_length, kv_length, int(kv_offset), window, padding)
    others["allow_is_causal_skip"] = False
    tensor = masking.sdpa_mask(batch_size, q_length, kv_length, q_offset=q_offset, kv_offset=kv_offset,
                               mask_function=mask_function, attention_mask=attention_mask, use_vmap=use_vmap, **others)
    if tensor is None:  # bidirectional without padding
        return None
    return TerseMask("dense", batch_size, q_length, kv_length, int(kv_offset), tensor=tensor)
