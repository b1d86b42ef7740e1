#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What packing costs on your text: KL and perplexity of several specs against exact keys and values.

    examples/python/compare.py MODEL TEXT k8v8,k4v4,kivi-k4v4,k3v3
"""
import pathlib
import sys

from tersekv import patch_model
from tersekv.cli import load
from tersekv.evaluate import evaluate

model, tokenizer = load(sys.argv[1], "float32")
ids = tokenizer(pathlib.Path(sys.argv[2]).read_text(), return_tensors="pt").input_ids[0]
context = min(512, (len(ids) - 1) // 2 * 2)
for row in evaluate(patch_model(model), ids, sys.argv[3].split(","), context=context, windows=2, quiet=True):
    print(f"{row['spec']:12} {row['ratio']:5.2f}x  KL {row['kl_mean']:.6f}  perplexity {row['ppl']:.3f} ({row['dppl']:+.2%})")
