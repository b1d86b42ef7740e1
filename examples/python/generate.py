#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The shortest way: an answer over a packed cache, and what it took.

    examples/python/generate.py MODEL "Why is the sky blue?"      MODEL: a folder, or a .gguf file
"""
import sys

from tersekv import TerseCache, patch_model
from tersekv.cli import load

model, tokenizer = load(sys.argv[1], "float32")
patch_model(model)
inputs = tokenizer(sys.argv[2], return_tensors="pt")
cache = TerseCache.for_model(model, kv="k4v4")
ids = model.generate(**inputs, past_key_values=cache, max_new_tokens=40, do_sample=False)
print(tokenizer.decode(ids[0], skip_special_tokens=True))
stats = cache.stats()
print(f"{stats['bytes_used']:,} bytes for {stats['slots']} tokens, {stats['bytes_f16']:,} as float16")
