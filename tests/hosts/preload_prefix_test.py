#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Slots of llama-server that begin with the same prompt: preload_prefix_test.py PRELOAD LLAMA_BIN [TEST...].

Their pages are held once; answers, and bytes of every slot, are those without sharing.
"""
import concurrent.futures
import json
import pathlib
import re
import sys
import unittest
import urllib.request

import preload

SO, BIN = map(pathlib.Path, sys.argv[1:3])
SYSTEM, SLOTS = preload.TEXT[:1000], 4  # a token a letter


def tails(round_):
    return [preload.TEXT[2000 + 700 * round_ + 170 * i:][:120] for i in range(SLOTS)]


class Packed(preload.Server):
    def __init__(self, *arguments, kv="k4v4", **variables):
        self.status_port = preload.free_port()
        super().__init__(BIN / "llama-server", preload.random_model(),
                         ["-np", SLOTS, "-kvu", "-b", 512, "-ub", 512, "-cram", 0, *arguments],
                         preload.environment(SO, kv, STATUS_PORT=self.status_port, **variables))

    def status(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.status_port}/status.json", timeout=60) as answer:
            return json.load(answer)["contexts"][0]

    def metric(self, name):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.status_port}/metrics", timeout=60) as answer:
            return float(re.search(rf"^{name}{{[^}}]*}} (\S+)$", answer.read().decode(), re.M)[1])

    def ask(self, slot, tail, n=16):
        return self.complete(SYSTEM + tail, n, id_slot=slot)

    def work(self):
        """Answers of all kinds of use; statuses after the first round and at the end."""
        out = {"first": [self.ask(slot, tail) for slot, tail in enumerate(tails(0))]}
        first = self.status()
        out["its own prefix"] = [self.ask(slot, tail) for slot, tail in enumerate(tails(1))]
        out["in the middle"] = self.complete(SYSTEM[:500] + tails(2)[0], 16, id_slot=1)
        out["saved"] = self.post("/slots/2?action=save", {"filename": "two.bin"})["n_saved"]
        out["erased"] = "n_erased" in self.post("/slots/2?action=erase", {})
        out["restored"] = self.post("/slots/0?action=restore", {"filename": "two.bin"})["n_restored"]
        out["behind it"] = self.ask(0, tails(1)[2] + " And then?")
        out["others"] = [self.ask(slot, tail) for slot, tail in enumerate(tails(3))]
        return out, first, self.status()


def pages(status):
    return status["bytes"]["pages"]


class Prefix(unittest.TestCase):
    maxDiff = 2000

    def test_one_system_prompt_in_four_slots(self):
        for kv in ("k4v4", "f32"):
            with Packed("-c", 8192, kv=kv) as server:
                answers, first, last = server.work()
                shared, saved = server.metric("tersekv_pages_shared"), server.metric("tersekv_bytes_saved")
            with Packed("-c", 8192, kv=kv, PREFIX="off") as server:
                own_answers, own_first, own_last = server.work()
                self.assertEqual(server.metric("tersekv_pages_shared"), 0)
            self.assertEqual(answers, own_answers)
            self.assertTrue(all("tokens" in a for a in answers["first"]), answers)
            for ours, own in ((first, own_first), (last, own_last)):
                self.assertEqual([s["bytes"] for s in ours["slots"]], [s["bytes"] for s in own["slots"]])
                self.assertEqual((own["pages"]["shared"], own["pages"]["bytes_saved"]), (0, 0))
                self.assertEqual(pages(ours) + ours["pages"]["bytes_saved"], pages(own))
            # 15 of about 17 pages of a slot are common to four.
            self.assertLess(pages(first), 0.4 * pages(own_first), kv)
            self.assertLess(first["bytes"]["used"], own_first["bytes"]["used"])
            self.assertEqual(shared, last["pages"]["shared"])
            self.assertEqual(saved, last["pages"]["bytes_saved"])

    def test_slots_at_the_same_time(self):
        with Packed("-c", 8192) as server:
            with concurrent.futures.ThreadPoolExecutor(SLOTS) as pool:
                results = list(pool.map(lambda i: server.ask(i, tails(0)[i]), range(SLOTS)))
            self.assertTrue(all(len(r.get("tokens", [])) == 16 for r in results), results)
            self.assertGreater(server.status()["pages"]["shared"], 0)

    def test_a_budget_that_holds_them_only_once(self):
        context = SLOTS * 1536
        with Packed("-c", context, PREFIX="off") as server:
            server.work()
            needed = server.status()["bytes"]["used"]
        budget = int(needed * 0.88)
        refused = Packed("-c", context, KV_BYTES=budget)  # sizes know of no common start
        self.assertNotEqual(refused.process.wait(60), 0)
        self.assertIn("TERSEKV_KV_BYTES is", refused.said())
        refused.__exit__()
        with Packed("-c", context, KV_BYTES=budget, PREFIX=960) as server:
            self.assertIn("the first 960 of each sequence, the same in all, are there once", server.said())
            answers, first, _ = server.work()
            self.assertTrue(all("tokens" in a for a in answers["first"] + answers["others"]), answers)
            self.assertLessEqual(first["bytes"]["reserved"], budget)


if __name__ == "__main__":
    preload.need(SO, BIN / "llama-server")
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
