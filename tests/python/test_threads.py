# SPDX-License-Identifier: Apache-2.0
"""Copies of one cache in several threads: the same tokens as in one, and finalizers that run whenever they like."""
import copy
import gc
import threading

import pytest
import torch

import tersekv
from models import forward, make, packed, tokens

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning", "ignore::FutureWarning")


def answer(model, cache, seed, steps=6):
    """Greedy tokens and the bits of their logits behind a prompt of its own."""
    ids, found = tokens(1, 3 + seed, seed), []
    for _ in range(steps):
        logits = forward(model, "tersekv", cache, ids)[:, -1]
        found.append(logits)
        ids = logits.argmax(-1, keepdim=True)
    return torch.cat(found)


@pytest.mark.parametrize("core_threads", [1, 2])
@pytest.mark.parametrize("kv", ["k4v4", "kivi-k4v4+win=32"])
def test_copies_in_threads_answer_as_in_one(kv, core_threads):
    tersekv.set_num_threads(core_threads)
    model = make("llama")
    model.set_attn_implementation("tersekv")
    prefix = packed(model, kv)
    forward(model, "tersekv", prefix, tokens(1, 150))
    want = [answer(model, copy.deepcopy(prefix), seed) for seed in range(3)]
    before = prefix.stats()
    failures, done = [], threading.Event()

    def work(seed):
        try:
            for _ in range(4):
                got = answer(model, copy.deepcopy(prefix), seed)
                if not torch.equal(got, want[seed]):
                    failures.append(f"thread {seed}: other logits")
        except BaseException as error:
            failures.append(f"thread {seed}: {error!r}")

    def litter():
        """Caches whose finalizers run while others step, some of them out of a cycle, in whatever thread collects."""
        try:
            while not done.is_set():
                garbage = copy.deepcopy(prefix)
                garbage.itself = garbage
                del garbage
                prefix.store.memory.release_scratch()
                gc.collect()
                done.wait(0.02)
        except BaseException as error:
            failures.append(f"litter: {error!r}")

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    other = threading.Thread(target=litter)
    for thread in [*workers, other]:
        thread.start()
    for thread in workers:
        thread.join()
    done.set()
    other.join()
    assert failures == []
    gc.collect()
    after = prefix.stats()
    assert (after["tokens"], after["bytes_used"]) == (before["tokens"], before["bytes_used"])


def test_first_steps_of_copies_make_each_core_once():
    """Copies of an empty cache: the layers' cores are made by whoever comes first."""
    model = make("llama")
    model.set_attn_implementation("tersekv")
    for repeat in range(5):
        empty = packed(model, "k4v4")
        caches, found = [copy.deepcopy(empty) for _ in range(4)], {}
        threads = [threading.Thread(target=lambda seed=seed: found.update({seed: answer(model, caches[seed], seed, 2)}))
                   for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(empty.store.cores) == 3
        assert [sorted(cache.rows) for cache in caches] and len({row for cache in caches for row in cache.rows}) == 4
        assert all(torch.equal(found[seed], answer(model, packed(model, "k4v4"), seed, 2)) for seed in range(4))
