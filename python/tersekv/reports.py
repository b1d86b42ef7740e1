# SPDX-License-Identifier: Apache-2.0
"""What a model's keys and values are like, and how many bits they need, from one forward pass over a little text."""
import contextlib

import torch

from tersekv import _core
from tersekv.hf import attention, compat
from tersekv.hf.layer import describe, together
from tersekv.hf.profiles import fingerprint

MODES = ("quality", "balanced")
LEAST_TOKENS = 96

TEXT = """A lighthouse keeper wrote down the weather every evening for forty years. On calm days the entry was short: \
wind from the west, light, sea smooth, visibility twelve miles. When storms came the pages filled with numbers, because \
he measured the pressure each hour and drew the curve by hand. In 1893 the barometer fell to 28.4 inches, and the waves \
broke over the gallery 96 feet above the rocks. He asked the harbour for new glass, forty panes in all, and listed what \
each would cost. "Without them," he said, "the lamp cannot burn, and without the lamp nobody should sail." The answer \
took three weeks. Meanwhile his daughter sewed sailcloth over the broken frames, and they kept the light by turning the \
lens with their own hands, two hours each, all through the night. Years later a clerk compared the keeper's curves with \
those of five other stations and found that storms moved along the coast at nearly the same speed. def speed(distance, \
hours): return distance / hours. That small discovery changed how warnings were sent: first by flag, then by telegraph, \
and at last by a machine that nobody had to turn."""


class KVNormReport:
    """Statistics of one model. print(report) shows a table; .layers, .specs and .advice are the numbers in it.

    layers[i]["kv_norm_ratio"]: sqrt(E|k|^2 / E|v|^2): large keys need the more careful codec. k_uncentred: E|k|^2 over
    E|k - mean|^2: what an unsubtracted mean would cost. specs: predicted errors of kNvN, a row each.
    """

    def __init__(self, profile):
        self.profile = profile
        found = profile.probe()
        self.layers, self.specs, self.advice = found["layers"], found["specs"], found["advice"]

    @property
    def ratios(self):
        return [layer["kv_norm_ratio"] for layer in self.layers]

    @property
    def max_ratio(self):
        return max(self.ratios)

    @property
    def mean_ratio(self):
        return sum(self.ratios) / len(self.ratios)

    def save(self, path):
        """The profile, for TerseCache(profile=path). It names no model file, so `tersekv run --profile` refuses it."""
        self.profile.save(str(path))

    def __str__(self):
        lines = ["layer  |k|/|v|  k uncentred  mean gain dB  scale gain dB"]
        lines += [f"{i:5} {layer['kv_norm_ratio']:8.2f} {layer['k_uncentred']:12.2f} {layer['k_mean_gain_db']:13.1f} "
                  f"{layer['k_scale_gain_db']:14.1f}" for i, layer in enumerate(self.layers)]
        lines += [f"{advice['mode']}: {advice['spec']} ({'; '.join(advice['reasons'])})" for advice in self.advice]
        return "\n".join(lines)

    __repr__ = __str__


def _input_ids(tokenizer, text, input_ids, max_tokens):
    if input_ids is None:
        if tokenizer is None:
            raise ValueError("a tokenizer or input_ids= is needed to have tokens to measure")
        input_ids = tokenizer(TEXT if text is None else text, return_tensors="pt").input_ids
    if input_ids.ndim != 2 or input_ids.shape[0] != 1:
        raise ValueError(f"input_ids have shape {list(input_ids.shape)}: [1, tokens] is needed")
    if input_ids.shape[1] < LEAST_TOKENS:
        raise ValueError(f"{input_ids.shape[1]} tokens are too few to measure: at least {LEAST_TOKENS}; pass a longer "
                         "text=")
    return input_ids[:, :max_tokens]


@contextlib.contextmanager
def _observed(model, observer):
    """Attention 'tersekv' with an observer meanwhile, then what the model had."""
    before = model.config._attn_implementation
    model.set_attn_implementation(attention.NAME)
    attention.OBSERVERS.append(observer)
    try:
        yield
    finally:
        attention.OBSERVERS.remove(observer)
        model.set_attn_implementation(before)


def collect_profile(model, tokenizer=None, text=None, input_ids=None, max_tokens=512):
    """One forward pass without a cache -> _core.Profile."""
    if compat.uses_latent_attention(compat.decoder_config(model.config)):
        raise ValueError("this model caches latents (MLA): there are no keys and values to measure")
    ids = _input_ids(tokenizer, text, input_ids, max_tokens).to(model.device)
    seen, thread = [], {}

    def shapes(module, q, k, v, scale):
        seen.append((q.shape[1], k.shape[1], k.shape[3], v.shape[3]))

    def rows(module, q, k, v, scale):
        views = [describe(together(x.detach())) for x in (k, v, q)]
        thread["collector"].layer(thread["at"], *((a, dtype, h, t) for a, dtype, _, h, t in views), scale)
        thread["at"] += 1

    with torch.no_grad():
        with _observed(model, shapes):
            model(input_ids=ids[:, :2], use_cache=False)
        if not seen:
            raise ValueError(f"{type(model).__name__} does not take its attention from Transformers' interface: its keys "
                             "and values cannot be measured")
        thread.update(collector=_core.Collector(seen), at=0)
        thread["collector"].begin(ids.shape[1])
        with _observed(model, rows):
            model(input_ids=ids, use_cache=False)
    name = getattr(model.config, "name_or_path", "") or type(model).__name__
    return thread["collector"].finish(name, fingerprint(model))


def measure_kv_norm_ratio(model, tokenizer=None, text=None, input_ids=None, max_tokens=512):
    """-> KVNormReport. Runs the model once over `text` (or a built-in paragraph, or input_ids [1, tokens])."""
    return KVNormReport(collect_profile(model, tokenizer, text, input_ids, max_tokens))


def recommend_bits(report, mode="balanced"):
    """-> {"spec", "key_bits", "value_bits", "reasons"} for mode "quality" or "balanced"."""
    if mode not in MODES:
        raise ValueError(f"mode '{mode}' is not known: {' or '.join(MODES)}")
    advice = next(row for row in report.advice if row["mode"] == mode)
    key_bits, value_bits = _core.spec_bits(advice["spec"])
    return {"spec": advice["spec"], "key_bits": int(key_bits), "value_bits": int(value_bits),
            "reasons": list(advice["reasons"])}
