#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Commands about codecs, end to end: codec_test.py TERSEKV [MODEL], as cli_test.py."""
import ast
import json
import math
import random
import struct
import unittest

import cli_test
from cli_test import ENVELOPE, TEXT


class Codecs(cli_test.Case):
    def test_codecs(self):
        rows = json.loads(self.ok("codecs", "--json").stdout)
        self.assertEqual(list(rows), ENVELOPE)
        specs = {row["spec"]: row for row in rows["rows"]}
        self.assertEqual([specs["f16"][f"bytes_d{d}"] for d in (64, 128, 256)], [256, 512, 1024])
        self.assertEqual([specs["k4v4"][f"bytes_d{d}"] for d in (64, 128, 256)], [68, 132, 260])
        self.assertEqual([specs["kivi-k4v4"]["bytes_d128"], specs["q4_0"]["bytes_d128"]], [136, 144])
        self.assertEqual([specs[s]["cost"] for s in ("f16", "k4v4", "q4_0", "k4tv4t")], ["-", "A", "B", "C"])
        self.assertEqual([specs[s]["cpu"] for s in ("f16", "k4v4", "q4_0")], ["fp32", "integer", "fp32"])
        for name, row in specs.items():
            for side in "kv":
                theory, measured = row[f"d_theory_{side}"], row[f"d_measured_{side}"]
                if theory:
                    self.assertLess(abs(measured / theory - 1), 0.1, name)
                else:
                    self.assertIn(name, ("f32", "f16", "bf16"))
        table = self.ok("run", "--kv", "list").stdout
        self.assertEqual(table, self.ok("codecs").stdout)
        for spec in specs:
            self.assertIn(f"\n{spec} ", table)
        unmeasured = json.loads(self.ok("codecs", "--json", "--no-measure").stdout)["rows"]
        self.assertEqual([row["spec"] for row in unmeasured], list(specs))
        self.assertEqual({row["d_measured_k"] for row in unmeasured}, {None})

    def test_bench_codec(self):
        out = self.tmp / "codec.json"
        done = self.ok("bench", "codec", "--kv", "k4v4,q4_0,kivi-k4v4", "--dims", "64,128", "--repeat", "2", "--json",
                       out)
        result = json.loads(out.read_text())
        self.assertEqual(list(result), ENVELOPE)
        names = ["k4v4", "q4_0", "kivi-k4v4"]
        peers = ["ggml-q8_0", "ggml-q5_0", "ggml-q4_0", "ggml-iq4_nl"]
        self.refused(1, ["head_dim 80", "blocks of 32"], "bench", "codec", "--kv", "q4_0", "--dims", "80", "--quiet")
        self.assertEqual([(row["head_dim"], row["spec"]) for row in result["rows"]],
                         [(d, n) for d in (64, 128) for n in names + peers + ["memcpy"]])
        for row in result["rows"]:
            self.assertIn(row["spec"], done.stdout)
            for side in ("encode", "decode"):
                self.assertGreater(row[f"{side}_gbps_low"], 0)
                self.assertLessEqual(row[f"{side}_gbps_low"], row[f"{side}_gbps"])
                self.assertEqual(row[f"{side}_ratio"] is None, row["spec"] not in names)
        self.assertEqual({row["peer"] for row in result["rows"][:3]}, {"ggml-q4_0"})
        self.refused(2, ["--dims", "4k"], "bench", "codec", "--dims", "4k")
        self.refused(2, ["2000", "1024"], "bench", "codec", "--dims", "2000")

    def npy(self, name, shape, values, kind="<f4"):
        head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
        path = self.tmp / name
        letter = {"<f2": "e", "<f4": "f", "<f8": "d", "<i4": "i"}[kind]
        path.write_bytes(b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head.encode() +
                         struct.pack(f"<{len(values)}{letter}", *values))
        return path

    def test_bench_codec_of_rows(self):
        rng = random.Random(1)
        values = [rng.gauss(3, 1) for _ in range(256 * 64)]
        rows = ("bench", "codec", "--rows")
        seen = []
        for kind in ("<f2", "<f4", "<f8"):
            path = self.npy("rows.npy", (128, 2, 64), values, kind)
            found = json.loads(self.ok(*rows, path, "--kv", "k4v4,k4v4+mean=off+scale=off", "--json", "-").stdout)["rows"]
            self.assertEqual([(row["spec"], row["side"], row["rows"]) for row in found],
                             [(s, k, 256) for s in ("k4v4", "k4v4+mean=off+scale=off") for k in "kv"])
            self.assertEqual(found[0]["bits"], 4.25)
            self.assertLess(abs(found[0]["d_centred"] / 0.0093 - 1), 0.1)
            self.assertLess(abs(found[0]["d_centred"] / found[0]["d"] - 10), 1)
            self.assertGreater(found[2]["d_centred"], 5 * found[0]["d_centred"])  # the mean costs
            seen.append(found[0]["d"])
        self.assertLess(max(seen) / min(seen), 1.02)
        found = json.loads(self.ok(*rows, path, "--kv", "fp8-head,fp8-tensor+mean=stats,q4_0,q4_0+mean=stats", "--json",
                                   "-").stdout)["rows"]
        self.assertEqual([row["bits"] for row in found[:4]], [8] * 4)
        for row in found[:4]:
            self.assertLess(abs(row["d"] / 7e-4 - 1) if row["spec"] == "fp8-head" else row["d_centred"], 0.2)
        self.assertGreater(found[4]["d_centred"], 3 * found[6]["d_centred"])  # mean=stats is measured
        for command in (rows + (path,), ("bench", "codec", "--quiet")):
            self.refused(1, ["q4_0+mean=profile", "mean=stats"], *command, "--kv", "q4_0+mean=profile")
        self.refused(1, ["none.npy"], *rows, "none.npy")
        (self.tmp / "no.npy").write_text("no array")
        self.refused(2, ["no.npy", "not a .npy"], *rows, self.tmp / "no.npy")
        self.refused(2, ["little-endian f2, f4 or f8"], *rows, self.npy("i.npy", (1, 2), [1, 2], "<i4"))
        self.refused(2, ["two axes"], *rows, self.npy("v.npy", "(64,)", values[:64]))
        self.refused(2, ["cut off"], *rows, self.npy("c.npy", (3, 64), values[:128]))
        self.refused(2, ["2000 channels"], *rows, self.npy("w.npy", (1, 2000), values[:2000]))
        self.refused(2, ["too few", "128"], *rows, self.npy("f.npy", (2, 64), values[:128]), "--kv", "kivi-k4v4")


class Keys(cli_test.ModelCase):
    def test_dump_kv(self):
        (self.tmp / "text").write_text(TEXT)
        args = ("dump-kv", "-m", cli_test.MODEL, "--text", self.tmp / "text", "--tokens", "150", "--quiet", "-o")
        self.ok(*args, self.tmp / "half", "--queries")
        self.ok(*args, self.tmp / "single", "--type", "f32")
        names = sorted(path.name for path in (self.tmp / "half").iterdir())
        layers = len(names) // 3
        self.assertEqual(names, sorted(f"{side}_{l:03}.npy" for side in "kvq" for l in range(layers)))
        half, single = (self.npy_values(self.tmp / kind / "k_001.npy") for kind in ("half", "single"))
        self.assertEqual(half[0], single[0])
        self.assertEqual(half[0][0], 150)
        self.assertGreater(self.npy_values(self.tmp / "half" / "q_001.npy")[0][1], half[0][1])  # query heads
        worst = max(abs(a - b) for a, b in zip(half[1], single[1]))
        self.assertLess(worst, 0.01 * max(map(abs, single[1])))
        self.ok("bench", "codec", "--kv", "k4v4", "--rows", self.tmp / "half" / "v_000.npy")
        self.refused(2, ["--text"], "dump-kv", "-m", cli_test.MODEL, "-o", self.tmp)
        self.refused(2, ["-o DIR"], "dump-kv", "-m", cli_test.MODEL, "--text", self.tmp / "text")

    def npy_values(self, path):
        data = path.read_bytes()
        size = struct.unpack_from("<H", data, 8)[0]
        self.assertEqual((10 + size) % 64, 0)
        head = ast.literal_eval(data[10:10 + size].decode())
        count = math.prod(head["shape"])
        return head["shape"], struct.unpack_from(f"<{count}{'e' if head['descr'] == '<f2' else 'f'}", data, 10 + size)


if __name__ == "__main__":
    cli_test.main()
