#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The sizing table of docs/serving.md is what `tersekv plan` prints: sizing_table_test.py ROOT TERSEKV.

Skipped (77) where the demo model is not (TERSEKV_TEST_MODEL, or where scripts/setup.sh puts it).
"""
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT, TERSEKV = pathlib.Path(sys.argv[1]), sys.argv[2]
CACHE = pathlib.Path(os.environ.get("TERSEKV_CACHE_DIR") or pathlib.Path(
    os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "tersekv")


def main():
    page = (ROOT / "docs/serving.md").read_text()
    command, table = re.search(r"^\$ tersekv (plan .*)\n((?:.*\n)*?)```$", page, re.M).groups()
    words = command.split()
    name = words[words.index("-m") + 1]
    model = os.environ.get("TERSEKV_TEST_MODEL") or CACHE / "models" / name
    if not os.path.exists(model):
        print(f"skipped: {model} is not here")
        return 77
    words[words.index(name)] = str(model)
    env = {k: v for k, v in os.environ.items() if not k.startswith("TERSEKV_")}
    said = subprocess.run([TERSEKV, *words, "--json", "-"], capture_output=True, text=True, check=True, env=env).stdout
    rows = {row["spec"]: row for row in json.loads(said)["rows"]}
    said = subprocess.run([TERSEKV, *words], capture_output=True, text=True, check=True, env=env).stdout
    if said != table:
        print(f"docs/serving.md has\n{table}\nand `tersekv {command}` prints\n{said}")
        return 1
    for line in table.splitlines():  # the same numbers in both forms
        if (row := rows.get(line.split(" ")[0])) is not None:
            numbers = line.split()[2:2 + len(row["contexts"]) + len(row["slots"])]
            assert list(map(int, numbers)) == [c["tokens"] for c in row["contexts"]] + [c["slots"] for c in row["slots"]]
            del rows[row["spec"]]
    assert not rows, rows
    print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
