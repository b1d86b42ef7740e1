# SPDX-License-Identifier: Apache-2.0
"""What a packed cache costs in quality: perplexity and KL over a text, token agreement over prompts."""
import math
import sys
import time

import torch
from transformers import DynamicCache

from tersekv.hf.attention import NAME
from tersekv.hf.cache import TerseCache


class Progress:
    """One line on a terminal, now and then a line elsewhere; nothing when quiet."""

    def __init__(self, what, total, quiet=False):
        self.what, self.total, self.quiet, self.start, self.shown = what, total, quiet, time.monotonic(), 0.0

    def at(self, done):
        now = time.monotonic()
        terminal = sys.stderr.isatty()
        if self.quiet or (done < self.total and now - self.shown < (0.2 if terminal else 10)):
            return
        self.shown = now
        left = (now - self.start) / done * (self.total - done) if done else 0
        filled = 24 * done // self.total
        line = f"{self.what} [{'#' * filled}{'.' * (24 - filled)}] {done}/{self.total}, {left:.0f} s left"
        print(f"\r{line}\033[K" if terminal else line, end="\n" if not terminal or done == self.total else "",
              file=sys.stderr, flush=True)


@torch.no_grad()
def evaluate(model, input_ids, specs, context=512, stride=None, windows=None, prefill="decode", quiet=False):
    """Sliding-window perplexity and forward KL against an exact cache -> [row by spec].

    input_ids: [tokens]. A window of `context` tokens every `stride` (default: half of it); only the tokens that the
    window before did not score are scored, of the first window its second half. prefill="decode": every token sees
    what decoding at its place would see, so a window is one pass.
    """
    stride = context // 2 if stride is None else stride
    if not 0 < stride <= context // 2:
        raise ValueError(f"stride {stride} must be from 1 to half the context, {context // 2}")
    starts = list(range(0, len(input_ids) - context, stride))[:windows]
    if not starts:
        raise ValueError(f"the text has {len(input_ids)} tokens: a context of {context} needs at least {context + 1}")
    sums = {spec: {"nll": 0.0, "kl": [], "top1": 0} for spec in ("reference", *specs)}
    usage, scored = {}, 0
    progress = Progress("windows", len(starts), quiet)
    before = model.config._attn_implementation
    try:
        for done, start in enumerate(starts):
            window = input_ids[start:start + context + 1]
            first = context // 2 if done == 0 else context - stride
            model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
            reference = model(window[None, :-1], use_cache=False).logits[0, first:].float().log_softmax(-1)
            targets = window[first + 1:]
            scored += len(targets)
            sums["reference"]["nll"] -= float(reference.gather(1, targets[:, None]).sum())
            model.set_attn_implementation(NAME)
            for spec in specs:
                cache = TerseCache.for_model(model, spec, prefill=prefill)
                logits = model(window[None, :-1], past_key_values=cache).logits[0, first:].float().log_softmax(-1)
                row = sums[spec]
                row["nll"] -= float(logits.gather(1, targets[:, None]).sum())
                row["kl"].append((reference.exp() * (reference - logits)).sum(-1))
                row["top1"] += int((reference.argmax(-1) == logits.argmax(-1)).sum())
                usage[spec] = cache.stats()
            progress.at(done + 1)
    finally:
        model.set_attn_implementation(before)
    base = math.exp(sums["reference"]["nll"] / scored)
    rows = []
    for spec in specs:
        kl, stats = torch.cat(sums[spec]["kl"]), usage[spec]
        ppl = math.exp(sums[spec]["nll"] / scored)
        rows.append({"spec": stats["spec"], "ppl": ppl, "dppl": ppl / base - 1, "ppl_reference": base,
                     "kl_mean": float(kl.mean()), "kl_median": float(kl.median()),
                     "kl_p99": float(kl.double().quantile(0.99)), "kl_max": float(kl.max()),
                     "top1": sums[spec]["top1"] / scored, "kv_bytes_used": stats["bytes_used"],
                     "kv_bytes_reserved": stats["bytes_reserved"], "kv_bytes_f16": stats["bytes_f16"],
                     "ratio": stats["ratio"], "tokens": scored, "context": context, "prefill": prefill})
    return rows


@torch.no_grad()
def validate(model, prompts, spec, new_tokens=64, quiet=False):
    """Greedy answers with a packed cache against DynamicCache -> {"agreement", "identical", "rows"}.

    prompts: token ids, [1, n] each. agreement: of top-1 tokens along DynamicCache's answer; identical: whole answers.
    """
    rows, progress = [], Progress("prompts", len(prompts), quiet)
    before = model.config._attn_implementation
    try:
        for done, ids in enumerate(prompts):
            mask = torch.ones_like(ids)
            options = dict(attention_mask=mask, max_new_tokens=new_tokens, do_sample=False, pad_token_id=0)
            model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
            want = model.generate(ids, past_key_values=DynamicCache(config=model.config), **options)
            model.set_attn_implementation(NAME)
            got = model.generate(ids, past_key_values=TerseCache.for_model(model, spec), **options)
            cache = TerseCache.for_model(model, spec)
            answer = want[:, ids.shape[1]:]
            picks = [model(ids, past_key_values=cache).logits[0, -1].argmax()]
            for i in range(answer.shape[1] - 1):
                picks.append(model(answer[:, i:i + 1], past_key_values=cache).logits[0, -1].argmax())
            same = got.shape == want.shape and torch.equal(got, want)
            length = min(got.shape[1], want.shape[1])
            differ = (got[0, :length] != want[0, :length]).nonzero()
            rows.append({"tokens": answer.shape[1], "identical": same,
                         "agreement": float((torch.stack(picks) == answer[0]).float().mean()),
                         "first_divergence": None if same else
                         int(differ[0] - ids.shape[1]) if len(differ) else length - ids.shape[1]})
            progress.at(done + 1)
    finally:
        model.set_attn_implementation(before)
    total = sum(row["tokens"] for row in rows)
    return {"spec": spec, "prompts": len(rows), "tokens": total,
            "agreement": sum(row["agreement"] * row["tokens"] for row in rows) / max(total, 1),
            "identical": sum(row["identical"] for row in rows), "rows": rows}
