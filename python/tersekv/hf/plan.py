# SPDX-License-Identifier: Apache-2.0
"""What a mask says about a batch: which slots of the running chunk are tokens, row by row."""
from dataclasses import dataclass

import torch

from tersekv.hf.masks import TerseMask


@dataclass
class BatchPlan:
    chunk: torch.Tensor   # [batch, n] bool: slots that are stored; each row's lie together
    ranges: list          # by row: (first, count) of them
    masked_history: bool  # the mask hides a token that is stored


def core_rows(rows, valid, start, n):
    """(sequence, first token, tokens, position of the first) by row, as LayerCache.step takes them."""
    if valid is None:
        return [(sequence, 0, n, start) for sequence in rows]
    return [(sequence, first, count, start + first) for sequence, (first, count) in zip(rows, valid.ranges)]


def plan_of(cache, mask, pending):
    """None: every slot of the chunk is a token, and all that is stored is seen. Made once a mask and step."""
    if not isinstance(mask, TerseMask):
        return None if cache.stored is None or mask is not None else _make(cache, None, pending)
    key = (id(cache), pending.start)
    if key not in mask.plans:
        mask.plans[key] = _make(cache, mask.padding, pending)
    return mask.plans[key]


def _make(cache, padding, pending):
    low, start, end = pending.low, pending.start, pending.end
    if padding is None and cache.stored is None:
        return None
    batch = len(cache.rows)
    seen = torch.ones(batch, end - low, dtype=torch.bool) if padding is None else padding.bool().cpu()
    seen = seen.expand(batch, -1)
    history, chunk = seen[:, :start - low], seen[:, start - low:]
    stored = torch.ones_like(history) if cache.stored is None else cache.stored[:, low:start]
    lost = (history & ~stored).nonzero()
    if len(lost):
        row, slot = lost[0].tolist()
        raise ValueError(f"the mask shows slot {low + slot} of batch row {row}, which was padding when it came and is "
                         "not stored: pass the same mask again, longer by the new tokens")
    masked = bool((stored & ~history).any())
    if padding is None and not masked:
        return None
    ranges, kept = [], torch.zeros_like(chunk)
    for row in range(batch):
        places = chunk[row].nonzero().flatten().tolist()
        first, count = (places[0], places[-1] - places[0] + 1) if places else (0, 0)
        masked = masked or count != len(places)  # a hole inside the chunk is stored, and hidden by the mask
        kept[row, first:first + count] = True
        ranges.append((first, count))
    return BatchPlan(kept, ranges, masked)
