# SPDX-License-Identifier: Apache-2.0
"""Compiled models: a TerseCache breaks their graphs and stays right; what asks for one graph, or for a static cache, is
refused with a reason."""
import subprocess
import sys

import pytest
import torch
import torch._dynamo

from models import forward, generate, make, packed, tokens
from tersekv import TerseCache, patch_model

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def steps(model, call, cache, ids, n=3):
    logits = [forward(model, "tersekv", cache, ids)]
    with torch.no_grad():
        for i in range(n):
            logits.append(call(input_ids=tokens(1, 1, seed=i), past_key_values=cache).logits)
    return logits


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_compiled_decode_step_gives_the_same(name):
    """Dynamo's own graphs, run as they are: what differs would be an error of the breaks, not of a compiler."""
    model, ids = make(name), tokens(1, 40)
    patch_model(model)
    want = steps(model, model, packed(model, "k4v4"), ids)
    compiled = torch.compile(model, backend="eager", dynamic=True)
    cache = packed(model, "k4v4")
    got = steps(model, compiled, cache, ids)
    for one, other in zip(got, want, strict=True):
        assert float((one - other).abs().max()) < 1e-4
    assert cache.get_seq_length() == 43 and not cache.stats()["decodes_because_of"]
    assert torch._dynamo.utils.counters["graph_break"]


def test_one_graph_is_refused_with_the_reason():
    model = make("llama")
    cache = packed(model, "k4v4")
    forward(model, "tersekv", cache, tokens(1, 10))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad(), pytest.raises(Exception, match="no graph can hold: compile without fullgraph=True"):
        compiled(input_ids=tokens(1, 1), past_key_values=cache)
    assert cache.get_seq_length() == 10
    forward(model, "tersekv", cache, tokens(1, 1))


def test_generate_does_not_compile_it():
    assert not packed(make("llama"), "k4v4").is_compileable
    assert not TerseCache(kv="k4v4").is_compileable


def test_a_static_cache_beside_it_is_refused():
    """By Transformers, which names both; cache_implementation has a closed list, and TerseCache is passed as a cache."""
    model, ids = make("llama"), tokens(1, 8)
    with pytest.raises(ValueError, match="both `cache_implementation`"):
        generate(model, "tersekv", packed(model, "k4v4"), ids, new=2, cache_implementation="static")


def test_the_attention_alone_works_with_a_static_cache():
    """Stock caches have plain tensors: the attention function takes them."""
    model, ids = make("llama"), tokens(1, 8)
    model.set_attn_implementation("eager")
    options = dict(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False,
                   cache_implementation="static")
    want = model.generate(**options)
    model.set_attn_implementation("tersekv")
    assert torch.equal(model.generate(**options), want)


def test_nothing_is_left_when_python_ends():
    """torch keeps what it has compiled past the module's end; codecs in it would be called leaked."""
    program = ("import torch\nfrom tersekv import Codec\ncodec = Codec(64, 4)\n"
               "both = lambda x: codec.decompress_k(*codec.compress_k(x))\n"
               "print(torch.compile(both, fullgraph=True, backend='aot_eager')(torch.randn(3, 64)).shape)\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "[3, 64]" in done.stdout, done.stderr
    assert "leaked" not in done.stderr, done.stderr
