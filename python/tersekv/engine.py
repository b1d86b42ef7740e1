# SPDX-License-Identifier: Apache-2.0
"""One object for those who come from TurboQuantEngine: generate, compress and decompress, attend, tune, report.

Everything goes through Codec and TerseCache; names and returns are those that such code expects, `ratio` is always from
allocated bytes, and the backend that computes is named.
"""
import time

import torch

from tersekv import _arrays, _core
from tersekv.codec import Codec
from tersekv.hf.cache import TerseCache
from tersekv.hf.dense import dense_attention
from tersekv.hf.layer import TerseLayer, simd_backend
from tersekv.hf.model import patch_model


class TurboQuantEngine:
    """head_dim of the keys, total_bits a value (2 to 8), device "cpu" or "cuda" (where models and vectors are); kv= any
    spec in place of total_bits.

    qjl_keys=True stores keys as total_bits - 1 bits and a QJL sign (spec kNpvNp): unbiased, but worse at equal bits.
    """

    def __init__(self, head_dim=128, total_bits=4, device="cpu", *, kv=None, qjl_keys=False):
        self.device = _arrays.check_device(device)
        if isinstance(total_bits, bool) or not isinstance(total_bits, int) or not 2 <= total_bits <= 8:
            raise ValueError(f"total_bits={total_bits!r}: a whole number from 2 to 8")
        if kv is not None and qjl_keys:
            raise ValueError("kv= and qjl_keys both say how keys are stored: give one of them")
        if kv is None:
            kv = f"k{total_bits}pv{total_bits}" if qjl_keys else f"k{total_bits}v{total_bits}"
        self.head_dim, self.spec = head_dim, _core.canonical(kv)
        self.codec = Codec(head_dim, spec=self.spec, device=self.device)
        self.backend = simd_backend() if self.device == "cpu" else f"cuda ({_core.cuda_kernels()})"
        self._reference = None

    def __repr__(self):
        return f"TurboQuantEngine(head_dim={self.head_dim}, spec='{self.spec}', backend='{self.backend}')"

    # -- vectors -------------------------------------------------------------------------------------------------------
    def compress_keys(self, keys):
        """[..., head_dim] -> {"packed", "scales"}"""
        packed, scales = self.codec.compress_k(keys)
        return {"packed": packed, "scales": scales}

    def compress_values(self, values):
        packed, scales = self.codec.compress_v(values)
        return {"packed": packed, "scales": scales}

    def decompress_keys(self, compressed, dtype=torch.float32):
        return self.codec.decompress_k(compressed["packed"], compressed["scales"], dtype)

    def decompress_values(self, compressed, dtype=torch.float32):
        return self.codec.decompress_v(compressed["packed"], compressed["scales"], dtype)

    def fused_attention(self, query, compressed_keys, compressed_values, scale=None):
        """query [batch, heads, queries, head_dim] over all compressed tokens -> [batch, heads, queries, head_dim].

        Decoded a layer at a time and attended with torch: for vectors in the caller's hands. A cache (build_cache)
        attends from packed pages instead.
        """
        keys = self.decompress_keys(compressed_keys, query.dtype)
        values = self.decompress_values(compressed_values, query.dtype)
        scale = self.head_dim ** -0.5 if scale is None else scale
        return dense_attention(query, keys, values, scale=scale, causal=False).transpose(1, 2)

    # -- caches --------------------------------------------------------------------------------------------------------
    def compress_kv_cache(self, cache):
        """A filled DynamicCache, or [(keys, values), ...] by layer -> the same as a packed cache (TerseCache)."""
        layers = [(layer.keys, layer.values) for layer in cache.layers] if hasattr(cache, "layers") else list(cache)
        if not layers or any(k is None for k, _ in layers):
            raise ValueError("the cache has layers without keys and values: fill it first")
        packed = TerseCache(kv=self.spec, device=self.device)
        for index, (keys, values) in enumerate(layers):
            packed.update(keys, values, index)
            packed.layers[index].flush()
        self._reference = layers
        return packed

    def compress_kv_3bit(self, cache):
        """compress_kv_cache at 3 bits, whatever this engine's bits are."""
        return TurboQuantEngine(self.head_dim, 3, self.device).compress_kv_cache(cache)

    def build_cache(self, model, **options):
        """A packed cache for model.generate(past_key_values=...); options as for TerseCache."""
        return TerseCache.for_model(model, self.spec, **{"device": self.device, **options})

    def compression_stats(self, cache, reference=None):
        """Bytes and fidelity of a packed cache: {"ratio", "bytes_used", "bytes_f16", "cosine_similarity", "layers"}.

        reference: [(keys, values), ...] or a DynamicCache with the same tokens; default: what compress_kv_cache was
        given last. Without one, similarities are None.
        """
        stats = cache.stats()
        reference = self._reference if reference is None else reference
        if hasattr(reference, "layers"):
            reference = [(layer.keys, layer.values) for layer in reference.layers]
        rows, similarities = [], []
        for index, row in enumerate(stats["layers"]):
            row = dict(row, cosine_similarity=None)
            layer = cache.layers[row["layer"]]
            if reference is not None and isinstance(layer, TerseLayer) and index < len(reference):
                start = time.perf_counter()
                pairs = list(zip(reference[row["layer"]], (layer.keys, layer.values)))
                row["decompress_ms"] = 1e3 * (time.perf_counter() - start)
                if any(a.shape != b.shape for a, b in pairs):
                    raise ValueError(f"layer {row['layer']}: the reference has shapes "
                                     f"{[list(a.shape) for a, _ in pairs]}, the cache "
                                     f"{[list(b.shape) for _, b in pairs]}: do both hold the same tokens?")
                cosine = [float(torch.cosine_similarity(a.float(), b.float(), dim=-1).mean()) for a, b in pairs]
                row["cosine_similarity"] = sum(cosine) / 2
                row["key_cosine_similarity"], row["value_cosine_similarity"] = cosine
                similarities.append(row["cosine_similarity"])
            rows.append(row)
        similarity = sum(similarities) / len(similarities) if similarities else None
        return {**{key: stats[key] for key in ("spec", "backend", "ratio", "bytes_used", "bytes_reserved", "bytes_f16",
                                               "tokens")}, "cosine_similarity": similarity, "layers": rows}

    def generate(self, model, tokenizer, prompt, max_new_tokens=128, **options):
        """-> {"text", "tokens", "stats"}: the answer's text, its token ids, bytes and seconds of the run."""
        before = model.config._attn_implementation
        patch_model(model)
        try:
            inputs = tokenizer(prompt, return_tensors="pt")
            device = next(model.parameters()).device
            given = {name: inputs[name].to(device) for name in ("input_ids", "attention_mask")}
            cache = self.build_cache(model)
            start = time.perf_counter()
            options.setdefault("do_sample", False)
            ids = model.generate(**given, past_key_values=cache, max_new_tokens=max_new_tokens, **options)
            self._wait()
            seconds = time.perf_counter() - start
        finally:
            model.set_attn_implementation(before)
        new = ids[0, inputs["input_ids"].shape[1]:]
        stats = cache.stats()
        stats.update(seconds=seconds, tokens_per_second=len(new) / seconds if seconds > 0 else 0.0)
        return {"text": tokenizer.decode(new, skip_special_tokens=True), "tokens": new.tolist(), "stats": stats}

    # -- tuning --------------------------------------------------------------------------------------------------------
    def auto_tune(self, seq_len, *, keys=None, values=None, heads=8, kv_heads=2, bits=(2, 3, 4, 5, 6, 8),
                  arithmetic=("int16", "fast"), min_similarity=0.99, repeats=5):
        """Times one decode step behind seq_len tokens for each width and arithmetic, on your keys and values.

        keys, values: [1, kv_heads, seq_len, head_dim] of a real model; Gaussian ones without. -> {"best", "rows"}: the
        fastest row whose attention output has min_similarity to exact attention, None when none has; `best` also becomes
        this engine's spec when it is found. On CUDA arithmetic and splits are the kernel's own and not tried; a row whose
        "backend" is "decode and SDPA" has no kernel in this build.
        """
        if (keys is None) != (values is None):
            raise ValueError("keys and values are given together, or neither")
        if keys is None:
            generator = torch.Generator().manual_seed(0)
            keys, values = (torch.randn(1, kv_heads, seq_len, self.head_dim, generator=generator).to(self.device)
                            for _ in "kv")
        kv_heads = keys.shape[1]
        if keys.shape != (1, kv_heads, seq_len, self.head_dim) or values.shape != keys.shape:
            raise ValueError(f"keys have shape {list(keys.shape)} and values {list(values.shape)}: both must be "
                             f"[1, kv_heads, {seq_len}, {self.head_dim}]")
        heads = max(heads // kv_heads, 1) * kv_heads
        query = torch.randn(1, heads, 1, self.head_dim, generator=torch.Generator().manual_seed(1)).to(keys)
        scale = self.head_dim ** -0.5
        exact = dense_attention(query, keys, values, scale=scale).float()
        rows = []
        for width in bits:
            for kind in arithmetic if self.device == "cpu" else ("int16",):
                rows.append(self._time(f"k{width}v{width}", kind, keys, values, query, scale, exact, repeats))
        good = [row for row in rows if row["similarity"] >= min_similarity]
        best = min(good, key=lambda row: row["ms"]) if good else None
        if best is not None:
            self.spec = best["spec"]
            self.codec = Codec(self.head_dim, spec=self.spec, device=self.device)
        return {"best": best, "rows": rows, "backend": self.backend, "threads": _core.num_threads()}

    def _time(self, spec, arithmetic, keys, values, query, scale, exact, repeats):
        cache = TerseCache(kv=spec, arithmetic=arithmetic, device=self.device)
        ask = lambda pending: cache.layers[0].attend(pending, query, None, config=None, scale=scale, causal=True,
                                                     window=None, softcap=None, sinks=None)
        if keys.shape[2] > 1:
            handle, _ = cache.update(keys[:, :, :-1], values[:, :, :-1], 0)
            cache.layers[0].core(query.shape[1])
            cache.layers[0].flush()
        seconds, first = [], None
        for _ in range(repeats + (self.device != "cpu")):  # a device's first launch loads its kernels
            handle, _ = cache.update(keys[:, :, -1:], values[:, :, -1:], 0)
            self._wait()
            start = time.perf_counter()
            out = ask(handle.pending)
            self._wait()
            seconds.append(time.perf_counter() - start)
            first = out if first is None else first
            if self.device == "cpu":  # on a device the next token follows: page tables would be sent again
                cache.crop(-1)
        seconds = sorted(seconds[-repeats:])
        similarity = float(torch.cosine_similarity(first.float().flatten(), exact.flatten(), dim=0))
        missing = cache.stats().get("no_kernel")
        return {"spec": spec, "arithmetic": arithmetic if self.device == "cpu" else "kernel",
                "ms": 1e3 * seconds[len(seconds) // 2], "similarity": similarity,
                "backend": "decode and SDPA" if missing else self.backend}

    def _wait(self):
        if self.device != "cpu":
            torch.cuda.synchronize()
