#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Distortion beside faiss and an exact Lloyd-Max codebook: compare_faiss.py TERSEKV [HEAD_DIM] [ROWS].

Uniform unit vectors. Needs faiss (pip install faiss-cpu) and NumPy; without them it says so and leaves with 77. Exit code
1: ours is more than 1% (5 bits: 2%, 6 bits: 4%, whose integer levels cost that much) above the exact codebook.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import faiss
    import numpy as np
except ImportError as error:
    print(f"skipped: {error}; pip install faiss-cpu numpy")
    sys.exit(77)

SLACK = {2: 1.01, 3: 1.01, 4: 1.01, 5: 1.02, 6: 1.04}


def lloyd_max(bits, d):
    """Levels and thresholds for one coordinate of a uniform unit vector, density (1 - u^2)^((d - 3) / 2)."""
    u = np.linspace(-1, 1, 400001)
    weight = np.maximum(1 - u * u, 0) ** ((d - 3) / 2)
    below, moment = (np.concatenate([[0], np.cumsum(v)]) for v in (weight, weight * u))
    levels = np.linspace(-3, 3, 2**bits) / np.sqrt(d)
    for _ in range(20000):
        cut = np.concatenate([[0], np.searchsorted(u, (levels[1:] + levels[:-1]) / 2), [u.size]])
        new = np.diff(moment[cut]) / np.maximum(np.diff(below[cut]), 1e-300)
        done = np.abs(new - levels).max() < 1e-9
        levels = new
        if done:
            break
    return levels, (levels[1:] + levels[:-1]) / 2


def distortion(x, y):
    return float(((x - y) ** 2).sum(dtype=np.float64) / (x**2).sum(dtype=np.float64))


def ours(program, rows, widths):
    """By bits: D of the levels themselves, and of the default: rotated, least-squares scale."""
    plain = [f"k{b}v{b}+rot=none+mean=off+scale=off+norm=none" for b in widths]
    default = [f"k{b}v{b}+mean=off+scale=off" for b in widths]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "rows.npy"
        np.save(path, rows)
        done = subprocess.run([program, "bench", "codec", "--rows", str(path), "--json", "-", "--kv",
                               ",".join(plain + default)], capture_output=True, text=True, check=True)
    found = [row for row in json.loads(done.stdout)["rows"] if row["side"] == "v"]
    return {b: (found[i]["d"], found[len(plain) + i]["d"]) for i, b in enumerate(widths)}


def scalar_quantizers(x):
    for name in sorted(q for q in dir(faiss.ScalarQuantizer) if q.startswith("QT_") and q[3].isdigit()):
        if name.endswith(("direct", "direct_signed", "eden")) or name.startswith("QT_0"):
            continue  # take integers, or are scaled from outside
        quantizer = faiss.ScalarQuantizer(x.shape[1], getattr(faiss.ScalarQuantizer, name))
        quantizer.train(x)
        codes = quantizer.compute_codes(x)
        yield name, 8 * codes.shape[1] / x.shape[1], distortion(x, quantizer.decode(codes))
    if hasattr(faiss, "IndexRaBitQ"):
        index = faiss.IndexRaBitQ(x.shape[1], faiss.METRIC_L2)
        index.train(x)
        index.add(x)
        yield "IndexRaBitQ", 8 * index.code_size / x.shape[1], distortion(x, index.reconstruct_n(0, len(x)))


def main(program, d=128, n=8192):
    x = np.random.default_rng(1).standard_normal((n, d)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    print(f"faiss {faiss.__version__}, NumPy {np.__version__}; {n} unit vectors of {d} channels")
    print("bits  exact Lloyd-Max  ours, no norm  ratio  ours, default V")
    failed = False
    for bits, (plain, default) in ours(program, x, list(SLACK)).items():
        levels, cuts = lloyd_max(bits, d)
        exact = distortion(x, levels[np.searchsorted(cuts, x)])
        failed |= plain > SLACK[bits] * exact
        print(f"{bits:4}  {exact:15.6f}  {plain:13.6f}  {plain / exact:.4f}  {default:.6f}")
    print("faiss              bits  D")
    for name, bits, found in scalar_quantizers(x):
        print(f"{name:17} {bits:5.2f}  {found:.6f}")
    return int(failed)


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 4:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
