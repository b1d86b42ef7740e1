#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One text is read once; questions about it are answered from copies, each in a thread of its own.

    examples/python/shared_prefix.py MODEL TEXT "First question?" "Second question?"
"""
import copy
import pathlib
import sys
from concurrent.futures import ThreadPoolExecutor

import torch

from tersekv import TerseCache, patch_model
from tersekv.cli import load

model, tokenizer = load(sys.argv[1], "float32")
patch_model(model)
text, questions = pathlib.Path(sys.argv[2]).read_text(), sys.argv[3:]
prefix = TerseCache.for_model(model, kv="k8v8")
start = tokenizer(text, return_tensors="pt").input_ids
with torch.no_grad():
    model(start, past_key_values=prefix)


def answer(question):
    cache = copy.deepcopy(prefix)  # shares the pages of the text, copies what it writes to
    more = tokenizer("\n" + question, return_tensors="pt", add_special_tokens=False).input_ids
    ids = torch.cat([start, more], dim=1)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), past_key_values=cache, max_new_tokens=20,
                         do_sample=False)
    return tokenizer.decode(out[0, ids.shape[1]:], skip_special_tokens=True)


with ThreadPoolExecutor(len(questions)) as threads:
    for question, found in zip(questions, threads.map(answer, questions)):
        print(f"{question}\n  {found.strip()}")
print(f"the text: {prefix.stats()['bytes_used']:,} bytes, once")
