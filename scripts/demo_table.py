#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table at the end of demo.sh: demo_table.py EVAL.json"""
import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    result = json.load(file)
rows = result["rows"]
stock = next(row for row in rows if row["spec"] == "stock-f16")

table = [["spec", "bits_spec", "bits_effective", "KV bytes used", "ratio", "prefill t/s", "decode t/s",
          "decode vs stock", "KL vs f16", "top-1 vs f16"]]
for row in rows:
    table.append([row["spec"], f"{row['bits_spec']:.3f}", f"{row['bits_effective']:.3f}", f"{row['kv_bytes_used']:,}",
                  f"{row['ratio']:.2f}x", f"{row['prefill_tps']:.1f}", f"{row['decode_tps']:.1f}",
                  f"{row['decode_tps'] / stock['decode_tps']:.2f}x", f"{row['kl_mean']:.6f}",
                  f"{100 * row['top1']:.2f}%"])
widths = [max(len(line[c]) for line in table) for c in range(len(table[0]))]
for number, line in enumerate(table):
    print("  ".join(cell.ljust(width) if c == 0 else cell.rjust(width)
                    for c, (cell, width) in enumerate(zip(line, widths))).rstrip())
    if number == 0:
        print("  ".join("-" * width for width in widths))
print(f"\nThe text above, {rows[0]['context']} tokens of context, {rows[0]['tokens']} scored; TerseKV "
      f"{result['tersekv_version']} ({result['commit']}) on {result['machine']}.")
print("ratio: f16 bytes of the same tokens over the bytes that are used. KL: mean, in nats. stock-f16: llama.cpp's own "
      "cache.")
