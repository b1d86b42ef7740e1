#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kill -9 of llama-server while it saves slots under libtersekv_preload.so: preload_kill_test.py PRELOAD LLAMA_BIN [KILLS].

Two states of different length are saved under one name in turns, as fast as it goes, until the server is killed at a
random moment. The file must then be one of the two, whole: a new server restores it and goes on as the first one did.
"""
import os
import pathlib
import random
import sys
import tempfile
import threading
import time

import preload

NAME = "state.bin"
PROMPTS = [preload.TEXT[:700], preload.TEXT[3000:4600]]


def server(so, llama_bin, model, folder):
    # The later --slot-save-path counts.
    return preload.Server(f"{llama_bin}/llama-server", model,
                          ["-c", 4096, "-np", 2, "-b", 256, "-ub", 128, "--cache-ram", 0, "--slot-save-path", f"{folder}/"],
                          preload.environment(so, "k4v4"))


def continuation(s, slot, prompt):
    return s.complete(prompt, 8, id_slot=slot)["tokens"]


def save_until_it_dies(s, started):
    turn = 0
    while True:
        try:
            saved = s.post(f"/slots/{turn % 2}?action=save", {"filename": NAME})
            assert "n_saved" in saved, saved
        except OSError:  # it is gone
            return
        started.set()
        turn += 1


def main(so, llama_bin, kills=24):
    preload.need(so, f"{llama_bin}/llama-server")
    model = preload.random_model()
    seed = int(os.environ.get("TERSEKV_TEST_SEED") or random.randrange(1 << 30))
    print(f"seed {seed} (TERSEKV_TEST_SEED)", flush=True)
    choose = random.Random(seed)
    wanted, lengths, found, torn = {}, {}, {}, 0
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, NAME)
        for kill in range(kills + 1):
            with server(so, llama_bin, model, folder) as s:
                if kill > 0:
                    restored = s.post("/slots/0?action=restore", {"filename": NAME})
                    which = [i for i, n in lengths.items() if n == restored.get("n_restored")]
                    assert len(which) == 1, f"kill {kill}: {restored}, whole states have {lengths} tokens\n{s.said()[-1500:]}"
                    found[which[0]] = found.get(which[0], 0) + 1
                    again = s.complete(PROMPTS[which[0]], 8, id_slot=0)
                    assert again["tokens"] == wanted[which[0]], (kill, which, again, wanted)
                    assert again["cache_n"] > 0, again
                if kill == kills:
                    break
                for i, prompt in enumerate(PROMPTS):
                    s.post(f"/slots/{i}?action=erase", {})
                    tokens = continuation(s, i, prompt)
                    assert wanted.setdefault(i, tokens) == tokens
                    lengths[i] = s.post(f"/slots/{i}?action=save", {"filename": NAME})["n_saved"]
                assert len(set(lengths.values())) == len(PROMPTS), lengths
                started = threading.Event()
                saver = threading.Thread(target=save_until_it_dies, args=(s, started))
                saver.start()
                started.wait(60)
                time.sleep(choose.uniform(0, 0.1))
                s.process.kill()
                s.process.wait()
                saver.join()
                torn += len([p for p in pathlib.Path(folder).iterdir() if p != path])
                for p in pathlib.Path(folder).iterdir():
                    if p != path:
                        p.unlink()
    print(f"{kills} kills, {torn} of them in the middle of writing; the file was of state 0, 1: {found}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3], *map(int, sys.argv[3:4])))
