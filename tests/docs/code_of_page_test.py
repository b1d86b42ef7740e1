#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles and runs the code of docs/writing_a_codec.md: code_of_page_test.py ROOT COMPILER FLAGS OBJECTS.

Each ```cpp block begins with where it goes: `// file: PATH` is a whole file, `// in: PATH, after: TEXT` are lines put
behind TEXT (its first place) of a file of the project. Both go to a folder that stands before the project in the search
for includes; with it the list of codecs and the page's own test are compiled. FLAGS: separated by blanks. OBJECTS: of
the rooms that no codec changes, separated by semicolons. Standard library only.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

PAGE = "docs/writing_a_codec.md"
SOURCES = ["list", "record_list", "spec_format", "spec_options", "spec_parse", "spec_text", "support"]


def blocks(text):
    """(kind, path, anchor, code) of each ```cpp block."""
    for body in re.findall(r"^```cpp\n(.*?)^```$", text, re.M | re.S):
        head, code = body.split("\n", 1)
        match = re.fullmatch(r"// (file): (\S+)()|// (in): ([^\s,]+), after: (.+)", head)
        if not match:
            sys.exit(f"{PAGE}: a block begins with '{head}', not with where it goes")
        yield (match[1] or match[4], match[2] or match[5], match[3] or match[6], code)


def lay_out(root, folder):
    """Writes the page's files and changes; the paths of its .cc files."""
    sources = []
    for kind, path, anchor, code in blocks((root / PAGE).read_text()):
        target = folder / path.removeprefix("include/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if kind == "in":
            text = (target if target.exists() else root / path).read_text()
            if anchor not in text:
                sys.exit(f"{PAGE}: {path} has no '{anchor}'")
            before, after = text.split(anchor, 1)
            code = f"{before}{anchor}\n{code}{after}"
        target.write_text(code)
        if path.endswith(".cc"):
            sources.append(target)
    if not sources:
        sys.exit(f"{PAGE}: no test in it")
    return sources


def main(root, compiler, flags, objects):
    root = pathlib.Path(root)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        sources = lay_out(root, folder) + [root / f"src/codec/{s}.cc" for s in SOURCES]
        program = folder / "page_test"
        command = [compiler, "-std=c++20", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", *flags.split(),
                   f"-I{folder}", f"-I{root}", f"-I{root}/include", *map(str, sources),
                   *filter(None, objects.split(";")), "-lgtest", "-lgtest_main", "-lfmt", "-pthread", "-o",
                   str(program)]
        done = subprocess.run(command)
        return done.returncode or subprocess.run([str(program)]).returncode


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
