#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How many bits does a model need? Measures it once, prints the report, and uses what was measured.

    examples/python/choose_bits.py MODEL profile.tkvp
"""
import sys

from tersekv import TerseCache, measure_kv_norm_ratio, patch_model, recommend_bits
from tersekv.cli import load

model, tokenizer = load(sys.argv[1], "float32")
patch_model(model)
report = measure_kv_norm_ratio(model, tokenizer)
print(report)
advice = recommend_bits(report, mode="balanced")
print("balanced:", advice["spec"])
# A layout of one's own: wider keys in the layers whose keys are largest. `tersekv calibrate` finds layouts by measuring.
largest = sorted(range(len(report.ratios)), key=report.ratios.__getitem__)[-1]
report.profile.add_budget(4.0, [(5, 4) if layer == largest else (4, 4) for layer in range(len(report.ratios))])
report.save(sys.argv[2])
for options in (dict(kv=advice["spec"]), dict(profile=sys.argv[2], bits=4.0)):
    cache = TerseCache.for_model(model, **options)
    inputs = tokenizer("The history of the steam engine", return_tensors="pt")
    model.generate(**inputs, past_key_values=cache, max_new_tokens=10, do_sample=False)
    print(options, f"{cache.stats()['bytes_used']:,} bytes")
