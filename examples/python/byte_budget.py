#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads as much of a text as a byte budget holds, piece by piece; what does not fit is taken back whole.

    examples/python/byte_budget.py MODEL TEXT 20000000
"""
import pathlib
import sys

import torch

from tersekv import TerseCache, patch_model
from tersekv.cli import load

model, tokenizer = load(sys.argv[1], "float32")
patch_model(model)
ids = tokenizer(pathlib.Path(sys.argv[2]).read_text(), return_tensors="pt").input_ids
cache = TerseCache.for_model(model, compression="compact", byte_budget=int(sys.argv[3]))
read, piece = 0, 64
try:
    while read < ids.shape[1]:
        with torch.no_grad():
            model(ids[:, read:read + piece], past_key_values=cache)
        read = min(read + piece, ids.shape[1])
except MemoryError as full:
    print(f"full: {full}")
stats = cache.stats()
assert cache.get_seq_length() == read  # no layer holds a token of the piece that did not fit
print(f"read {read} of {ids.shape[1]} tokens; history {stats['bytes_reserved']:,} bytes, scratch {stats['bytes_scratch']:,}")
