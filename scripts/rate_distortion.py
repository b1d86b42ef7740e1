#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rate-distortion pictures of the codecs: rate_distortion.py TERSEKV OUT_DIR [KEYS.npy ...].

Writes rate_distortion_gaussian.svg, rate_distortion_outlier.svg (made-up RoPE keys with a few channels of large mean or
spread) and, for keys of a model ([tokens, heads, head_dim] each), rate_distortion_keys.svg. Distortion is measured by
`tersekv bench codec --rows` and shown relative to the power about the mean, against the bound of independent Gaussian
channels of the same variances (for equal ones: Shannon's 2^-2R). Bits are those of records, scales included. Standard
library only.
"""
import ast
import json
import math
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

FAMILIES = [  # name, colour, marker, specs
    ("Lloyd-Max", "#1f5fb4", "circle", [f"k{b}v{b}" for b in range(2, 9)]),
    ("trellis", "#c2410c", "diamond", [f"k{b}tv{b}t" for b in (2, 3, 4)]),
    ("2-D VQ", "#15803d", "square", [f"k{b}qv{b}q" for b in ("2", "2.5", "3", "3.5", "4")]),
    ("prod (QJL)", "#9333ea", "cross", [f"k{b}pv{b}p" for b in range(2, 9)]),
    ("KIVI", "#b45309", "triangle", [f"kivi-k{b}v{b}" for b in (2, 3, 4, 8)]),
    ("Lloyd-Max, Haar, no mean, no scale", "#dc2626", "ring",
     [f"k{b}v{b}+rot=haar+mean=off+scale=off+norm=none" for b in range(2, 9)]),
]
FORMATS = ["fp8", "int8", "mxfp4", "nvfp4", "q8_0", "q5_0", "q4_0", "iq4_nl"]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 520, 70, 20, 46, 52
BITS, LOGS = (1.8, 9.2), (-5.2, 0.6)  # of the axes


def gaussian_rows(n=4096, d=128):
    rng = random.Random(1)
    return [[rng.gauss(0, 1) for _ in range(d)] for _ in range(n)]


def outlier_rows(n=2048, d=128):
    """Keys after RoPE: 4 slow pairs with a mean of 10 to 30 spreads, 2 faster pairs of 4 to 8 spreads."""
    rng = random.Random(2)
    pairs = d // 2
    mean, spread = [(0.0, 0.0)] * pairs, [1.0] * pairs
    for p in (pairs - 1, pairs - 2, pairs - 4, pairs - 7):
        size, angle = rng.uniform(10, 30), rng.uniform(0, 2 * math.pi)
        mean[p] = (size * math.cos(angle), size * math.sin(angle))
    for p in (pairs // 2, pairs // 2 + 5):
        spread[p] = rng.uniform(4, 8)
    rows = []
    for t in range(n):
        row = []
        for p in range(pairs):
            a = mean[p][0] + spread[p] * rng.gauss(0, 1)
            b = mean[p][1] + spread[p] * rng.gauss(0, 1)
            c, s = math.cos(t * 10000 ** (-p / pairs)), math.sin(t * 10000 ** (-p / pairs))
            row += [a * c - b * s, a * s + b * c]
        rows.append(row)
    return rows


def write_npy(path, rows):
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({len(rows)}, {len(rows[0])}), }}"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head.encode())
        for row in rows:
            file.write(struct.pack(f"<{len(row)}f", *row))


def read_heads(path):
    """The rows of each head of a [tokens, heads, head_dim] file of halves or floats."""
    data = pathlib.Path(path).read_bytes()
    size = struct.unpack_from("<H", data, 8)[0]
    head = ast.literal_eval(data[10:10 + size].decode())
    tokens, heads, d = head["shape"]
    letter, width = {"<f2": ("e", 2), "<f4": ("f", 4)}[head["descr"]]
    at = 10 + size
    for h in range(heads):
        yield [list(struct.unpack_from(f"<{d}{letter}", data, at + width * d * (t * heads + h)))
               for t in range(tokens)]


def variances(rows):
    n, out = len(rows), []
    for channel in zip(*rows):
        mean = sum(channel) / n
        out.append(sum((v - mean) ** 2 for v in channel) / n)
    return out


def bound(spread, bits):
    """Least D at `bits` a value of independent Gaussian channels: reverse water-filling."""
    low, high = 0.0, max(spread)
    for _ in range(100):
        level = (low + high) / 2
        rate = sum(max(0, math.log2(v / level) / 2) for v in spread if v > 0) / len(spread)
        low, high = (level, high) if rate > bits else (low, level)
    return sum(min(v, high) for v in spread) / sum(spread)


def measure(program, rows):
    """By spec: (bits, D about the mean) of keys."""
    specs = [s for *_, family in FAMILIES for s in family] + FORMATS
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "rows.npy"
        write_npy(path, rows)
        done = subprocess.run([program, "bench", "codec", "--rows", str(path), "--json", "-", "--kv", ",".join(specs)],
                              capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
    found = [row for row in json.loads(done.stdout)["rows"] if row["side"] == "k"]
    return {name: (row["bits"], row["d_centred"]) for name, row in zip(specs, found)}


def average(many):
    """Geometric means over sets of rows."""
    return {name: (many[0][name][0], math.exp(sum(math.log(max(m[name][1], 1e-12)) for m in many) / len(many)))
            for name in many[0]}


def x_of(bits):
    return LEFT + (bits - BITS[0]) / (BITS[1] - BITS[0]) * (WIDTH - LEFT - RIGHT)


def y_of(d):
    at = (LOGS[1] - math.log10(d)) / (LOGS[1] - LOGS[0])
    return TOP + min(max(at, 0), 1) * (HEIGHT - TOP - BOTTOM)


def marker(kind, x, y, colour):
    x, y = round(x, 1), round(y, 1)
    shapes = {
        "circle": f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"/>',
        "ring": f'<circle cx="{x}" cy="{y}" r="4" fill="none" stroke="{colour}" stroke-width="1.6"/>',
        "square": f'<path d="M{x - 3.5:.1f} {y - 3.5:.1f}h7v7h-7z" fill="{colour}"/>',
        "diamond": f'<path d="M{x} {y - 5:.1f}l5 5l-5 5l-5 -5z" fill="{colour}"/>',
        "triangle": f'<path d="M{x} {y - 5:.1f}l4.6 8.4h-9.2z" fill="{colour}"/>',
        "cross": f'<path d="M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8" stroke="{colour}" stroke-width="1.8"/>',
    }
    return shapes[kind]


def text(x, y, what, size=12, anchor="start", extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{extra}>{what}</text>'


def picture(title, points, least):
    """points: measure(); least: (bits, D) of the bound."""
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
           f'fill="#1f2937">', f'<path d="M0 0h{WIDTH}v{HEIGHT}h-{WIDTH}z" fill="#ffffff"/>',
           text(LEFT, 26, title, 16, extra=' font-weight="bold"')]
    for power in range(-5, 1):
        y = y_of(10**power)
        out.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#e5e7eb"/>')
        out.append(text(LEFT - 8, y + 4, f"{10**power:g}" if power > -3 else f"1e{power}", anchor="end"))
    for bits in range(2, 10):
        x = x_of(bits)
        out.append(f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#e5e7eb"/>')
        out.append(text(x, HEIGHT - BOTTOM + 18, bits, anchor="middle"))
    out.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "bits a value, scales included", 13, "middle"))
    out.append(text(0, 0, "squared error / power about the mean", 13, "middle",
                    f' transform="translate(18 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)"'))
    line = " ".join(f"{x_of(b):.1f},{y_of(d):.1f}" for b, d in least if math.log10(d) > LOGS[0])
    out.append(f'<polyline points="{line}" fill="none" stroke="#111827" stroke-width="1.5"/>')
    legend = [("bound", None, None)]
    for name, colour, kind, specs in FAMILIES:
        at = [(x_of(points[s][0]), y_of(points[s][1])) for s in specs]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-opacity="0.45"/>')
        out += [marker(kind, x, y, colour) for x, y in at]
        legend.append((name, colour, kind))
    for name in FORMATS:
        x, y = x_of(points[name][0]), y_of(points[name][1])
        out.append(marker("square", x, y, "#4b5563"))
        below = name in ("nvfp4", "int8")  # beside another one
        out.append(text(x + 6, y + (12 if below else -5), name, 10, extra=' fill="#4b5563"'))
    legend.append(("formats of engines, not rotated", "#4b5563", "square"))
    for i, (name, colour, kind) in enumerate(legend):
        y = TOP + 16 + 18 * i
        x = WIDTH - RIGHT - 250
        out.append(marker(kind, x, y - 4, colour) if kind else
                   f'<path d="M{x - 8} {y - 4}h16" stroke="#111827" stroke-width="1.5"/>')
        out.append(text(x + 14, y, name))
    return "\n".join(out + ["</svg>\n"])


def save(folder, name, title, program, sets):
    results = [measure(program, rows) for rows in sets]
    spreads = [variances(rows) for rows in sets]
    least = []
    for step in range(int(BITS[0] * 5) + 1, int(BITS[1] * 5)):
        bits = step / 5
        least.append((bits, math.exp(sum(math.log(bound(s, bits)) for s in spreads) / len(spreads))))
    path = folder / f"rate_distortion_{name}.svg"
    points = average(results)
    path.write_text(picture(title, points, least))
    print(f"{path}: {path.stat().st_size} bytes")
    for spec, (bits, d) in points.items():
        print(f"  {spec:45} {bits:7.3f} bits  D {d:.5g}")


def main(program, folder, *keys):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save(folder, "gaussian", "Gaussian vectors, d = 128", program, [gaussian_rows()])
    save(folder, "outlier", "Made-up RoPE keys with outlier channels, d = 128", program, [outlier_rows()])
    if keys:
        sets = [rows for path in keys for rows in read_heads(path)]
        save(folder, "keys", f"Keys of a model: geometric mean of {len(sets)} heads, d = {len(sets[0][0])}", program,
             sets)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
