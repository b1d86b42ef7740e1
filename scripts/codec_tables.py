#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""src/codec/trellis_tables.h and vq2_tables.h from tests/golden/codec_tables.json: codec_tables.py [--check]

Values are in unit-variance scale; the largest becomes the integer 127. --check writes nothing and fails when a header
is not what it would write. Standard library only; clang-format lays the headers out the same way.
"""
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
SOURCE = "tests/golden/codec_tables.json"
TOP = """// SPDX-License-Identifier: Apache-2.0
// Made by scripts/codec_tables.py from {source}; not edited by hand.
// {what}
#pragma once

#include <cstdint>

namespace tersekv {{
"""
END = "\n}  // namespace tersekv\n"


def quantise(values):
    """Integers of [-127, 127] and their step, a decimal that fp32 code and this script read the same."""
    step = float(f"{max(map(abs, values)) / 127:.7g}")
    return [round(v / step) for v in values], step


def array(name, comment, integers):
    """As clang-format lays out a list that fits no line: the columns as wide as their widest entry."""
    lines, line = [], "   "
    for number, value in enumerate(integers):
        word = f" {value}" + ("," if number + 1 < len(integers) else "")
        if len(line) + len(word) > 112:
            lines.append(line)
            line = "   "
        line += word
    return (f"\n// {comment}\n// clang-format off\ninline constexpr int8_t {name}[{len(integers)}] = {{\n"
            + "\n".join(lines + [line]) + "\n};\n// clang-format on\n")


def window_order(values, bits, window):
    """[newest symbol lowest] -> [oldest symbol lowest], the order of a little-endian bit stream."""
    symbols, mask = window // bits, (1 << bits) - 1
    return [values[sum((w >> bits * i & mask) << bits * (symbols - 1 - i) for i in range(symbols))]
            for w in range(1 << window)]


def trellis(tables):
    text = TOP.format(source=SOURCE, what="Levels of the trellis codec by window (trellis.h), as integers times a step.")
    for bits, table in tables.items():
        k, window = int(bits), table["window"]
        integers, step = quantise(window_order(table["values"], k, window))
        text += f"\ninline constexpr float kTrellisStep{k} = {step:.7g}f;"
        text += array(f"kTrellisLevels{k}", f"{k} bits, windows of {window}", integers)
    return text + END


def vq2(tables):
    text = TOP.format(source=SOURCE, what="Entries of the 2-D VQ codec, both values of a pair in turn, as integers times a step.")
    for bits, pairs in tables.items():
        integers, step = quantise([v for pair in pairs for v in pair])
        text += f"\ninline constexpr float kVq2Step{len(pairs)} = {step:.7g}f;"
        text += array(f"kVq2Levels{len(pairs)}", f"{bits} bits a value, [{len(pairs)}, 2]", integers)
    return text + END


def main(arguments):
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    tables = json.loads((ROOT / SOURCE).read_text(encoding="utf-8"))
    stale = 0
    for name, text in (("trellis", trellis(tables["trellis"])), ("vq2", vq2(tables["vq2"]))):
        header = ROOT / f"src/codec/{name}_tables.h"
        if not arguments:
            header.write_text(text, encoding="utf-8")
        elif not header.is_file() or header.read_text(encoding="utf-8") != text:
            print(f"{header.relative_to(ROOT)} is not what {SOURCE} says: run scripts/codec_tables.py")
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
