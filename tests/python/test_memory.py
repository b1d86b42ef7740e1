# SPDX-License-Identifier: Apache-2.0
"""What a process takes, resident and at its peak, beside the formula and DynamicCache. A decoded copy would show."""
import json
import pathlib
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, gc, json, sys, torch, tersekv
sys.path.insert(0, {folder!r})
from test_cache import rows, step
from tersekv import TerseCache
from transformers import DynamicCache
torch.set_num_threads(1); tersekv.set_num_threads(1)
layers, heads, d, tokens, chunk, copy = 16, 4, 128, {tokens}, 512, {copy}

def memory(key):
    gc.collect(); ctypes.CDLL(None).malloc_trim(0)
    return next(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith(key)) << 10

def peak_of(work):
    open('/proc/self/clear_refs', 'w').write('5')
    work()
    return memory('VmHWM')

k, v, q = (rows(1, h, chunk, d, seed=s).half() for s, h in ((1, heads), (2, heads), (3, 8)))
one = [x[:, :, :1].clone() for x in (k, v, q)]
warm = TerseCache(kv='k4v4'); step(warm, k, v, q); step(warm, *one); del warm
stock = DynamicCache(); stock.update(k, v, 0); del stock
before = memory('VmRSS')
cache = TerseCache(kv='k4v4')
for layer in range(layers):
    step(cache, k, v, q, layer=layer)
    for _ in range(tokens // chunk - 1):
        cache.update(k, v, layer)   # no attention: a prompt this long would take minutes
stats = cache.stats()
cache.store.memory.release_scratch()
filled = memory('VmRSS') - before

def decode():
    for layer in range(layers):
        step(cache, *one, layer=layer)
        if copy:                    # what the test must catch
            cache.layers[layer].keys, cache.layers[layer].values

peak = peak_of(decode) - before
formula = sum(layer.core().formula_bytes(tokens) for layer in cache.layers)
result = dict(filled=filled, peak=peak, used=stats['bytes_used'], f16=stats['bytes_f16'], formula=formula,
              scratch=cache.stats()['bytes_scratch'])
del cache
before = memory('VmRSS')
stock = DynamicCache()
for layer in range(layers):
    for _ in range(tokens // chunk):
        stock.update(k, v, layer)
result['dynamic'] = memory('VmRSS') - before
print(json.dumps(result))
"""
MIB = 1 << 20


def measure(tokens, copy=False):
    program = PROGRAM.format(folder=str(pathlib.Path(__file__).parent), tokens=tokens, copy=copy)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    print(tokens, result)
    return result


def slab_rest():
    """Before Linux 6.1 a slab of pages is a huge page from the start, and resident whole."""
    release = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
    return 0 if release >= (6, 1) else 2 * MIB


def limit_of_peak(result, tokens):
    one_layer = tokens * 4 * 128 * 2 * 2  # of float16 keys and values, decoded
    return result["filled"] + result["scratch"] + one_layer // 4


@pytest.mark.parametrize("tokens", [8192, 32768])
def test_process_memory_follows_the_formula(tokens):
    """Within 1% and 8 KiB a layer (its objects), the allocator included; at 8,192 tokens up to 1.06% over were seen. The
    peak of decode steps holds no decoded layer."""
    result = measure(tokens)
    assert result["f16"] == 16 * tokens * 4 * 256 * 2
    assert abs(result["used"] / result["formula"] - 1) < 0.01
    assert abs(result["filled"] - result["formula"]) < 0.01 * result["formula"] + 16 * 8192 + slab_rest()
    assert result["peak"] < limit_of_peak(result, tokens)
    assert abs(result["dynamic"] - result["f16"]) < 0.02 * result["f16"] + 3 * MIB
    assert result["filled"] < result["dynamic"] / 3.4


def test_a_decoded_copy_would_be_seen():
    result = measure(8192, copy=True)
    assert result["peak"] > limit_of_peak(result, 8192)
