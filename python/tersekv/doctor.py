# SPDX-License-Identifier: Apache-2.0
"""What this installation can do: `python -m tersekv doctor`. Exit code 0 when everything that was tested works."""
import importlib
import importlib.metadata
import os
import sys

from tersekv import _core

VARIABLES = {
    "TERSEKV_THREADS": "threads of codecs and caches (default: one a core)",
    "TERSEKV_FORCE_ISA": "picks the SIMD target",
    "TERSEKV_NVTX": "1: NVTX ranges around append and attend on CUDA",
}


def _package(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cache_check():
    """A packed cache of a tiny random model against DynamicCache."""
    import torch
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    from tersekv import TerseCache, patch_model
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=99, hidden_size=128, intermediate_size=64, num_hidden_layers=2,
                                         num_attention_heads=2, num_key_value_heads=1)).eval()
    ids = torch.randint(3, 99, (1, 20))
    options = dict(attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False, pad_token_id=0)
    want = model.generate(ids, past_key_values=DynamicCache(config=model.config), **options)
    patch_model(model)
    got = model.generate(ids, past_key_values=TerseCache.for_model(model, kv="f32"), **options)
    if not torch.equal(want, got):
        raise RuntimeError("an f32 cache gives other tokens than DynamicCache")


def checks():
    """(name, state, text) of each check; state is 'ok', 'info' or 'FAILED'."""
    yield "tersekv", "info", f"{_core.version()} ({_core.commit()})"
    yield "python", "info", sys.version.split()[0]
    targets = _core.simd_targets()
    if targets:
        yield "simd", "ok", f"{targets[0]} in use" + (f"; also {', '.join(targets[1:])}" if targets[1:] else "")
    else:
        yield "simd", "FAILED", "no SIMD target runs here: build TerseKV on this machine"
    yield "threads", "info", str(_core.num_threads())
    yield "cuda", "info", f"kernels: {_core.cuda_kernels()}" if _core.cuda_available() else "this build has no CUDA"
    try:
        _core.self_test()
        yield "codecs", "ok", "self-test passed"
    except Exception as error:
        yield "codecs", "FAILED", str(error)
    missing = [name for name in ("torch", "transformers") if _package(name) is None]
    for name in ("numpy", "torch", "transformers"):
        yield name, "info", _package(name) or "not installed"
    if missing:
        yield "cache", "info", f"not tested: pip install 'tersekv[hf]' brings {' and '.join(missing)}"
    else:
        try:
            _cache_check()
            yield "cache", "ok", "an f32 cache gives the tokens of DynamicCache"
        except Exception as error:
            yield "cache", "FAILED", f"{type(error).__name__}: {error}"
    for name, use in VARIABLES.items():
        yield name, "info", f"{os.environ.get(name, 'not set')} ({use})"


def main():
    failed = []
    for name, state, text in checks():
        print(f"{name:20} {state:7} {text}")
        if state == "FAILED":
            failed.append(f"{name}: {text}")
    print(f"verdict: NOT ready: {'; '.join(failed)}" if failed else "verdict: ready")
    return 1 if failed else 0
