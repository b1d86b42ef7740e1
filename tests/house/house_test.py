#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The rules of the house, one check a name: house_test.py CHECK [ROOT]. Standard library only.

CHECK is one of `includes`, `length`, `spdx`, `words`, `format`, `mirror`, `size`; `list` prints them. Exit codes:
0 kept, 1 broken (each place on a line), 77 skipped. self_test.py shows that each check can fail.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOMS = ["base", "bits", "transform", "codec", "cache", "attention", "cpu", "cuda", "api"]  # may use those at their left
BESIDE_API = ["io", "calibration"]  # may use what api may; none of the three uses another
MAX_LINES = 400
MAX_BYTES = 1 << 20
CLANG_FORMAT_MAJOR = 14  # other versions lay out some lines differently
SKIPPED = 77
OTHER_TEST_FOLDERS = {"cli", "docs", "hosts", "house", "install", "reference", "tools", "golden", "fuzz", "compile_fail",
                      "python"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
ENGINE = re.compile(r"^(llama|ggml)[\w-]*\.h$|^(llama|ggml)/")
CUDA = re.compile(r"^(cuda|cub|cublas|thrust|cooperative_groups|nv)[\w/.-]*$")
SPDX = "SPDX-License-Identifier: Apache-2.0"
CODE = (".h", ".cc", ".c", ".cu", ".cuh", ".py", ".sh", ".cmake")
SOURCES = (".h", ".cc", ".c", ".cu", ".cuh")


class Skip(Exception):
    pass


class Tree:
    """Files that git tracks, and new ones that it does not ignore; outside a checkout, all but those of builds."""

    def __init__(self, root):
        self.root = pathlib.Path(root).resolve()
        if self.git("rev-parse", "--show-toplevel").strip() == str(self.root):
            names = self.git("ls-files", "-co", "--exclude-standard", "-z").split("\0")
        else:
            names = [str(p.relative_to(self.root)) for p in self.root.rglob("*")
                     if not re.search(r"(^|/)(\.git|build|__pycache__)/", str(p.relative_to(self.root)) + "/")]
        self.files = sorted({n for n in names if n and (self.root / n).is_file()})

    def git(self, *arguments):
        """Its output; "" when it fails or is not there."""
        if not shutil.which("git"):
            return ""
        return subprocess.run(["git", *arguments], cwd=self.root, capture_output=True, text=True).stdout

    def text(self, name):
        """None for a file that is no text."""
        data = (self.root / name).read_bytes()
        return None if b"\0" in data else data.decode("utf-8", "replace")

    def lines(self, name):
        return (self.text(name) or "").splitlines()

    def ending(self, *suffixes):
        return [n for n in self.files if n.endswith(suffixes)]


def include_fault(file, header):
    """Why `file` may not include `header`; None when it may."""
    top = file.split("/")[0]
    if top == "tests":
        return None
    if ENGINE.search(header) and not file.startswith("hosts/llama/"):
        return "only hosts/llama includes llama.cpp"
    ours = header.split("/")[0] in ("src", "hosts", "cli", "python", "bench", "tests", "examples")
    if file.startswith("include/tersekv/"):
        if ours or header.startswith("hwy/") or CUDA.match(header):
            return "installed headers include the standard library and tersekv/ only"
        if header == "tersekv/llama.h" and not file.startswith("include/tersekv/llama"):  # headers of that host
            return "the core does not know its hosts"
    elif top == "src":
        room = file.split("/")[1]
        other = header.split("/")[1] if header.startswith("src/") else room
        rooms = ROOMS + BESIDE_API
        if room not in rooms or other not in rooms:
            return f"'{room if room not in rooms else other}' is no room; there are {', '.join(rooms)}"
        beside = BESIDE_API + ["api"]
        if room in beside and other in beside and room != other:
            return f"{room} stands beside {other}"
        if rooms.index(other) > rooms.index(room):
            return f"arrows run one way: {room} stands before {other}"
        if header == "tersekv/llama.h" or (ours and not header.startswith("src/")):
            return "the core does not know its hosts"
        if header.startswith("hwy/") and room != "cpu":
            return "SIMD is the business of cpu"
        if CUDA.match(header) and room != "cuda":
            return "CUDA is not the business of this room"
        if room == "cuda" and other == "cpu":
            return "cpu and cuda do not know each other"
    elif top == "hosts" and ours and not header.startswith(("src/", "hosts/")):
        return "hosts include src/, tersekv/ and themselves"
    elif top == "python" and ours and not header.startswith(("src/base/", "python/")):
        return "the Python module uses tersekv/, src/base and itself"
    elif top == "cli" and ours and not header.startswith("cli/"):
        return "the CLI uses tersekv/ and cli/ only"
    elif top == "examples" and ours:
        return "examples use installed headers only"
    return None


def check_includes(tree):
    for name in tree.ending(*SOURCES):
        for number, line in enumerate(tree.lines(name), 1):
            match = INCLUDE.match(line)
            fault = match and include_fault(name, match[1] or match[2])
            if fault:
                yield f"{name}:{number}: {match[1] or match[2]}: {fault}"


def check_length(tree):
    for name in tree.ending(*CODE):
        count = len(tree.lines(name))
        if count > MAX_LINES:
            yield f"{name}: {count} lines; the most is {MAX_LINES}"


def check_spdx(tree):
    for name in tree.files:
        lines = tree.lines(name)
        script = bool(lines) and lines[0].startswith("#!")
        if not (script or name.endswith(CODE) or pathlib.PurePath(name).name == "CMakeLists.txt"):
            continue
        first = "\n".join(lines[script:script + 1])
        if not re.match(rf"(//|#|/\*) {SPDX}\b", first):
            yield f"{name}: the first line (after #!) must be '{SPDX}' as a comment"


def check_words(tree):
    role = ("cli/", "hosts/", "include/", "python/", "tests/")  # the name of a chat role
    rules = [  # (pattern, what, where it is allowed)
        # An XML namespace is a name, not an address; loopback and an address that a program fills in name no host.
        (re.compile(r"(?<!xmlns=\")(?<!xmlns:xlink=\")\bhttps?://(?!127\.0\.0\.1\b|\{)[^\s)>\"']*"),
         "a network address", ("LICENSE",)),
        (re.compile(r"(?<![\w.])/(work|root)/[^\s]*"), "a path of one machine", ()),
        (re.compile(r"\bsub-?agents?\b", re.I), "a word that does not belong here", ()),
        (re.compile(r"\bassistants?\b", re.I), "a word that does not belong here", role),
        (re.compile(r"\b(TODO|FIXME|XXX)\b"), "unfinished work: finish it or open an issue", ()),
    ]
    for name in tree.files:
        if name.startswith("tests/house/"):  # speaks about these words
            continue
        for number, line in enumerate(tree.lines(name), 1):
            for pattern, what, allowed in rules:
                match = pattern.search(line)
                if match and not (allowed and name.startswith(allowed)):
                    yield f"{name}:{number}: '{match[0]}': {what}"


def clang_format():
    for name in (os.environ.get("CLANG_FORMAT"), f"clang-format-{CLANG_FORMAT_MAJOR}", "clang-format"):
        program = name and shutil.which(name)
        if not program:
            continue
        version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
        if re.search(rf"version {CLANG_FORMAT_MAJOR}\.", version):
            return program
    raise Skip(f"clang-format {CLANG_FORMAT_MAJOR} is not here (CLANG_FORMAT names another place)")


def check_format(tree):
    program = clang_format()
    names = tree.ending(*SOURCES)
    done = subprocess.run([program, "--dry-run", "-Werror", "--style=file", *names], cwd=tree.root, capture_output=True,
                          text=True)
    if done.returncode:
        places = re.findall(r"^(\S+?:\d+):\d+: error: .*$", done.stderr, re.M)
        yield from (f"{place}: run clang-format -i" for place in sorted(set(places)) or [done.stderr.strip()])


def check_mirror(tree):
    rooms = {n.split("/")[1] for n in tree.files if n.startswith("src/") and n.count("/") > 1}
    folders = {n.split("/")[1] for n in tree.files if n.startswith("tests/") and n.count("/") > 1}
    for folder in sorted(folders - rooms - OTHER_TEST_FOLDERS):
        yield f"tests/{folder}: mirrors no room of src/"
    for room in sorted(rooms):
        if not any(re.fullmatch(rf"tests/{room}/\w+_test\.cc", n) for n in tree.files):
            yield f"src/{room}: tests/{room} has no *_test.cc"
    for name in tree.ending("_test.cc"):
        if not name.startswith("tests/") and not name.endswith("/self_test.cc"):
            yield f"{name}: tests live in tests/<room>/"


def check_size(tree):
    for name in tree.files:
        size = (tree.root / name).stat().st_size
        if size > MAX_BYTES:
            yield f"{name}: {size} bytes; the most is {MAX_BYTES}"


CHECKS = {n.removeprefix("check_"): f for n, f in list(globals().items()) if n.startswith("check_")}


def main(arguments):
    if arguments == ["list"]:
        print("\n".join(CHECKS))
        return 0
    if len(arguments) not in (1, 2) or arguments[0] not in CHECKS:
        print(__doc__, file=sys.stderr)
        return 2
    tree = Tree(arguments[1] if len(arguments) == 2 else pathlib.Path(__file__).parents[2])
    try:
        faults = list(CHECKS[arguments[0]](tree))
    except Skip as reason:
        print(f"skipped: {reason}")
        return SKIPPED
    for fault in faults:
        print(fault)
    print(f"{arguments[0]}: {len(tree.files)} files, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
