#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prefill over packed history: new tokens, causal among themselves, after a history in k4v4 pages.

The history is decompressed range by range into two scratches of fixed size (transformed rows, bf16); PyTorch's attention
reads them and our merge joins the parts. Beside it, in the same run: the same attention over dense bf16 rows. Needs
PyTorch and libtersekv_cuda_shared.so.
"""
import argparse
import ctypes as c
import json
import os
import statistics

import torch

HEADS, KV_HEADS, D = 32, 8, 128
BF16 = 2


class Format(c.Structure):
    _fields_ = [("struct_size", c.c_uint32)] + [
        (n, c.c_int32) for n in ("head_dim", "k_bits", "v_bits", "raw_dtype", "k_norm", "v_norm", "page_tokens")] + [
            ("seed", c.c_uint64)]


class Pool(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("format", c.POINTER(Format)), ("pages", c.c_void_p),
                ("kv_heads", c.c_int32), ("layer", c.c_int32)] + [
                    (n, c.c_void_p) for n in ("k_mean", "k_scale", "k_inv_scale", "v_mean", "v_scale", "v_inv_scale")]


class Rows(c.Structure):
    _fields_ = [("data", c.c_void_p), ("dtype", c.c_int32), ("batch_stride", c.c_int64), ("token_stride", c.c_int64),
                ("head_stride", c.c_int64)]


class Tokens(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("pool", c.POINTER(Pool)), ("k", Rows), ("v", Rows), ("slots", c.c_void_p),
                ("tokens", c.c_int32), ("not_finite", c.c_void_p)]


class Range(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("pool", c.POINTER(Pool)), ("k", Rows), ("v", Rows),
                ("lengths", c.c_void_p), ("block_table", c.c_void_p), ("table_stride", c.c_int64)] + [
                    (n, c.c_int32) for n in ("batch", "first", "tokens", "transformed")]


class Queries(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("pool", c.POINTER(Pool)), ("q", Rows), ("out", Rows),
                ("bias", c.c_void_p), ("batch", c.c_int32), ("heads", c.c_int32), ("q_len", c.c_int32),
                ("scale", c.c_float)]


class Parts(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("pool", c.POINTER(Pool)), ("batch", c.c_int32), ("heads", c.c_int32),
                ("q_len", c.c_int32), ("count", c.c_int32), ("rows", c.POINTER(c.c_void_p)),
                ("rows_lse", c.POINTER(c.c_void_p)), ("part", Rows), ("resume", c.c_int32), ("state", c.c_void_p),
                ("state_lse", c.c_void_p), ("bias", c.c_void_p), ("own", Rows), ("own_lse", c.c_void_p), ("out", Rows),
                ("lse", c.c_void_p)]


def rows_of(t):
    """t: [batch, heads, tokens, d], any strides with d innermost."""
    assert t.stride(3) == 1 and t.dtype == torch.bfloat16
    return Rows(t.data_ptr(), BF16, 2 * t.stride(0), 2 * t.stride(2), 2 * t.stride(1))


class Library:
    def __init__(self, path):
        self.library = c.CDLL(path)
        self.library.tersekv_last_error.restype = c.c_char_p
        self.library.tersekv_cuda_page_bytes.restype = c.c_size_t

    def call(self, name, struct):
        struct.struct_size = c.sizeof(struct)
        status = getattr(self.library, name)(c.byref(struct), c.c_uint64(torch.cuda.current_stream().cuda_stream))
        if status != 0:
            raise RuntimeError(f"{name}: {self.library.tersekv_last_error().decode()}")


def cudnn(q, k, v, causal=False):
    out = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, False)
    return out[0], out[1].view(q.shape[0], q.shape[1], q.shape[2])


def fa2(q, k, v, causal=False):
    out = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False)
    return out[0], out[1]


class Case:
    """Sequences of one length in pages, the same history as dense rows, and new tokens."""

    def __init__(self, library, batch, history, new, attention=cudnn, page=64):
        self.library, self.batch, self.history, self.new, self.attention = library, batch, history, new, attention

        def make(heads, tokens):
            return torch.randn(batch, tokens, heads, D, device="cuda", dtype=torch.bfloat16).transpose(1, 2)

        self.q = make(HEADS, new)
        self.dense_k, self.dense_v = make(KV_HEADS, history + new), make(KV_HEADS, history + new)
        stats = [torch.randn(KV_HEADS, D, device="cuda") * 0.5 for _ in range(2)]
        scale = torch.exp(torch.randn(KV_HEADS, D, device="cuda") * 0.3)
        self.stats = [stats[0], scale, 1 / scale, stats[1]]
        for dense, mean in ((self.dense_k, stats[0]), (self.dense_v, stats[1])):
            dense.add_(mean.view(1, KV_HEADS, 1, D).to(torch.bfloat16))
        self.k_new, self.v_new = self.dense_k[:, :, history:], self.dense_v[:, :, history:]
        self.format = Format(c.sizeof(Format), D, 4, 4, BF16, 3, 2, page, 7)
        pages = (history + page - 1) // page
        size = library.library.tersekv_cuda_page_bytes(c.byref(self.format), KV_HEADS)
        self.memory = torch.zeros(batch * pages * size, device="cuda", dtype=torch.uint8)
        self.table = torch.randperm(batch * pages, device="cuda").to(torch.int32).view(batch, pages)
        self.lengths = torch.full((batch,), history, device="cuda", dtype=torch.int32)
        p = [t.data_ptr() for t in self.stats]
        self.pool = Pool(c.sizeof(Pool), c.pointer(self.format), self.memory.data_ptr(), KV_HEADS, 1, p[0], p[1], p[2],
                         p[3], None, None)
        at = torch.arange(history, device="cuda")
        for b in range(batch):
            slots = self.table[b].long()[at // page] * page + at % page
            k, v = (rows_of(t[b:b + 1]) for t in (self.dense_k, self.dense_v))
            library.call("tersekv_cuda_append", Tokens(0, c.pointer(self.pool), k, v, slots.data_ptr(), history, None))
            torch.cuda.synchronize()
        self.qt = torch.empty_like(self.q)
        self.bias = torch.empty(batch, HEADS, new, device="cuda")
        self.out = torch.empty_like(self.q)

    def scratch(self, tile):
        return [[torch.empty(self.batch, tile, KV_HEADS, D, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
                 for _ in range(2)] for _ in range(2)]

    def decode(self, first, k, v, transformed=1):
        self.library.call("tersekv_cuda_decompress_range", Range(
            0, c.pointer(self.pool), rows_of(k), rows_of(v), self.lengths.data_ptr(), self.table.data_ptr(),
            self.table.stride(0), self.batch, first, k.shape[2], transformed))

    def merge(self, parts, state=None, resume=False, own=None):
        """parts: (out, lse); into the state, or with `own` into self.out."""
        starts = (c.c_void_p * 16)(*[o.data_ptr() for o, _ in parts])
        lse = (c.c_void_p * 16)(*[x.data_ptr() for _, x in parts])
        last = own is not None
        assert all(o.stride() == parts[0][0].stride() and x.is_contiguous() for o, x in parts)
        self.library.call("tersekv_cuda_merge", Parts(
            0, c.pointer(self.pool), self.batch, HEADS, self.new, len(parts), starts, lse, rows_of(parts[0][0]),
            int(resume), state[0].data_ptr() if state else None, state[1].data_ptr() if state else None,
            self.bias.data_ptr(), rows_of(own[0]) if last else Rows(), own[1].data_ptr() if last else None,
            rows_of(self.out) if last else Rows(), None))

    def transform(self):
        self.library.call("tersekv_cuda_transform_queries", Queries(
            0, c.pointer(self.pool), rows_of(self.q), rows_of(self.qt), self.bias.data_ptr(), self.batch, HEADS,
            self.new, D ** -0.5))

    def packed(self, tiles, scratch, kept=8, side=None):
        """One prefill. tiles: (first, tokens); kept: parts that wait for a merge; side: a stream for decoding ahead."""
        main = torch.cuda.current_stream()
        parts, state, resume = [], None, False
        decoded, read = [torch.cuda.Event() for _ in tiles], [torch.cuda.Event() for _ in tiles]
        stream = side or main
        stream.wait_stream(main)

        def decode(i):
            with torch.cuda.stream(stream):
                if side and i >= 2:
                    stream.wait_event(read[i - 2])
                first, tokens = tiles[i]
                self.decode(first, *(t[:, :, :tokens] for t in scratch[i % 2]))
                decoded[i].record()

        decode(0)
        self.transform()
        own = self.attention(self.q, self.k_new, self.v_new, True)
        for i, (first, tokens) in enumerate(tiles):
            if side and i + 1 < len(tiles):
                decode(i + 1)
            main.wait_event(decoded[i])
            parts.append(self.attention(self.qt, *(t[:, :, :tokens] for t in scratch[i % 2])))
            read[i].record()
            if not side and i + 1 < len(tiles):
                decode(i + 1)
            if len(parts) == kept and i + 1 < len(tiles):
                state = state or (torch.empty(self.batch, self.new, HEADS, D, device="cuda"),
                                  torch.empty(self.batch, HEADS, self.new, device="cuda"))
                self.merge(parts, state, resume)
                parts, resume = [], True
        self.merge(parts, state, resume, own)
        return own, parts

    def joined(self):
        """The same attention over dense rows, in the same two parts."""
        a, x = self.attention(self.q, self.dense_k[:, :, :self.history], self.dense_v[:, :, :self.history])
        b, y = self.attention(self.q, self.k_new, self.v_new, True)
        w = torch.sigmoid(x - y).unsqueeze(-1)
        return (w * a + (1 - w) * b).to(torch.bfloat16)


def tiles_of(history, tile, first=None):
    tiles, at = [], 0
    if first and history > tile:
        tiles.append((0, first))
        at = first
    while at < history:
        tiles.append((at, min(tile, history - at)))
        at += tile
    return tiles


def capture(call):
    stream = torch.cuda.Stream(priority=-1)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        keep = call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        keep = call()
    return graph, keep


def microseconds(graphs, rounds=15):
    """Medians, in turns."""
    times = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, (graph, _) in graphs.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times[name].append(begin.elapsed_time(end) * 1e3)
    return {name: statistics.median(t[2:]) for name, t in times.items()}


def reference(case, heads=(0, 5, 31)):
    """Double precision over what the pages hold, of some heads: [batch, heads, new, d]."""
    k, v = (torch.empty(case.batch, case.history, KV_HEADS, D, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
            for _ in range(2))
    case.decode(0, k, v, transformed=0)
    outs = []
    for h in heads:
        g = h // (HEADS // KV_HEADS)
        keys = torch.cat([k[:, g], case.k_new[:, g]], 1).double()
        values = torch.cat([v[:, g], case.v_new[:, g]], 1).double()
        scores = case.q[:, h].double() @ keys.transpose(1, 2) * D ** -0.5
        mask = torch.ones(case.new, case.history + case.new, dtype=torch.bool, device="cuda").tril(case.history)
        outs.append(scores.masked_fill(~mask, float("-inf")).softmax(-1) @ values)
    return torch.stack(outs, 1)


def check(case, heads=(0, 5, 31)):
    want = reference(case, heads)
    got = case.out[:, list(heads)].double()
    return ((got - want).norm() / want.norm()).item()


def measure(library, batch, history, new, variants):
    case = Case(library, batch, history, new)
    dense = {
        "cudnn": lambda: cudnn(case.q, case.dense_k, case.dense_v),  # without a mask: PyTorch's has none for this corner
        "cudnn, 2 parts": case.joined,
        "fa2, causal": lambda: fa2(case.q, case.dense_k, case.dense_v, True),
    }
    graphs = {name: capture(call) for name, call in dense.items()}
    row = {"batch": batch, "history": history, "new": new}
    for tile, first, kept, ahead in variants:
        scratch = case.scratch(min(tile, history))
        side = torch.cuda.Stream() if ahead else None
        name = f"tile {tile}" + (f", first {first}" if first else "") + f", {kept} parts" + (", ahead" if ahead else "")
        case.out.fill_(float("nan"))
        graphs[name] = capture(lambda s=scratch, t=tiles_of(history, tile, first), k=kept, a=side: (s, a, case.packed(t, s, k, a)))
        graphs[name][0].replay()
        torch.cuda.synchronize()
        error = check(case, (0, 31))
        row.setdefault("error", {})[name] = error
        assert error < 2e-2, (name, error)
    tile = min(8192, history)
    scratch = case.scratch(tile)
    graphs["decode of 8192"] = capture(lambda: case.decode(0, *scratch[0]))
    graphs["attention over 8192"] = capture(lambda: cudnn(case.qt, *scratch[0]))
    graphs["own"] = capture(lambda: cudnn(case.q, case.k_new, case.v_new, True))
    graphs["transform"] = capture(case.transform)
    row["us"] = microseconds(graphs)
    return row


# tile, first tile, parts before a merge, decode ahead on a second stream
VARIANTS = [(8192, None, 8, True), (16384, 4096, 8, True)]
PROBE = [(8192, None, 8, False), (8192, None, 8, True), (16384, 4096, 8, True), (16384, 8192, 8, True),
         (32768, 4096, 8, True)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--probe", action="store_true", help="several ways to cut the history")
    parser.add_argument("--quick", action="store_true", help="one sequence of 8,192 tokens only")
    options = parser.parse_args()
    torch.manual_seed(0)
    library = Library(options.library)
    shapes = [(1, 8192)] if options.quick else [(1, 8192), (1, 32768), (4, 8192), (4, 32768), (1, 131072), (4, 131072)]
    rows = []
    for batch, history in shapes:
        row = measure(library, batch, history, 512, PROBE if options.probe else VARIANTS)
        rows.append(row)
        best = min(row["us"][n] for n in ("cudnn", "cudnn, 2 parts", "fa2, causal"))
        for name, us in row["us"].items():
            print(f"{batch} x 512 over {history}: {name}: {us:.1f} us, {best / us:.3f}x of the best dense"
                  + (f", error {row['error'][name]:.1e}" if name in row["error"] else ""), flush=True)
        torch.cuda.empty_cache()
    with open(os.path.join(options.out, "prefill.json"), "w", encoding="utf-8") as file:
        json.dump({"rows": rows, "machine": torch.cuda.get_device_name(0), "torch": torch.__version__}, file, indent=1)


if __name__ == "__main__":
    main()
