#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/perf/fidelity.md: every codec of the family against f16 on one text, as Markdown and JSON.

The list is dealt out to several `tersekv eval` at once (each scores the same contexts against the same f16 cache, and a
row does not depend on its neighbours), which keeps many cores busier than one run. Stopped, the same command goes on."""
import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

RAW = "k4v4+rot=haar+mean=off+scale=off+norm=none+sink=0+win=0"
ALL = f"""{RAW} k4v4+mean=off+scale=off k4v4+scale=off k4v4 k4v4+mean=profile bits=4 k4v4+mean=profile+win=0
k4v4+mean=profile+sink=0+win=0 k4v4+mean=page+scale=off k4tv4t k4tv4t+mean=profile k4qv4q k4pv4p kivi-k4v4 q4_0
q4_0+rot=h1 q4_0+rot=h1+mean=stats+sink=4+win=128 iq4_nl iq4_nl+rot=h1 nvfp4 nvfp4+rot=h1 mxfp4 mxfp4+rot=h1 fp8
fp8-head fp8-tensor fp8+rot=h1 int8+rot=h1 q8_0 q8_0+rot=h1 q5_0 q5_0+rot=h1 k3.5qv3.5q bits=3.5 kivi-k4v3 k3v3
k3v3+mean=profile bits=3 k3tv3t k3tv3t+mean=profile k3pv3p kivi-k3v3 kivi-k3v2-g32 k2.5qv2.5q bits=2.5 k2v2 k2tv2t""".split()
MAIN = f"""{RAW} k4v4 k4v4+scale=off k4v4+mean=profile bits=4 k4v4+mean=profile+win=0 k4tv4t+mean=profile kivi-k4v4
q4_0+rot=h1 q4_0+rot=h1+mean=stats+sink=4+win=128 k3v3 k3v3+mean=profile bits=3 k3tv3t nvfp4+rot=h1 q8_0""".split()
LISTS = {"all": ALL, "main": MAIN}


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True, help="GGUF file; f32 weights, so that nothing else rounds")
    parser.add_argument("--text", required=True)
    parser.add_argument("--profile", required=True, help="of this model, with bits 2.5, 3, 3.5 and 4; not from this text")
    parser.add_argument("--ctx", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=20480, help="scored at least (default: %(default)s)")
    parser.add_argument("--kv", default="all", help="specs, separated by commas, or a list: all, main")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--threads", type=int, help="of each process (default: the machine's cores shared out)")
    parser.add_argument("--tersekv", default="build/release/cli/tersekv")
    parser.add_argument("--out", type=Path, required=True, help="folder for the parts and the result")
    return parser.parse_args()


def claim(args, specs):
    """The folder belongs to one set of arguments and one program: parts of two would be mixed otherwise."""
    version = subprocess.run([args.tersekv, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    this = {"model": args.model, "text": args.text, "profile": args.profile, "tokens": args.tokens, "kv": specs,
            "processes": args.processes, "version": version}
    file = args.out / f"{args.ctx}-run.json"
    if file.exists() and json.loads(file.read_text(encoding="utf-8")) != this:
        sys.exit(f"{file} is of a run with other arguments or another program: name another --out, or delete it and "
                 f"{args.ctx}-*.json beside it")
    file.write_text(json.dumps(this, indent=2) + "\n", encoding="utf-8")


def start(args, part, specs):
    """(process, base of its files); no process when the part has its result already."""
    base = args.out / f"{args.ctx}-part{part}"
    if Path(f"{base}.json").exists():
        return None, base
    command = [args.tersekv, "eval", "-m", args.model, "--text", args.text, "--ctx", args.ctx, "--tokens", args.tokens,
               "--profile", args.profile, "--threads", args.threads, "--kv",
               ",".join(specs), f"--json={base}.json", "--resume", f"{base}.state"]
    log = open(f"{base}.log", "w", encoding="utf-8")
    return subprocess.Popen(list(map(str, command)), stdout=log, stderr=subprocess.STDOUT), base


def progress(log):
    """(percent, line) of what a part says last."""
    line = (log.read_text(encoding="utf-8").strip().splitlines() or ["starting"])[-1]
    percent = re.search(r": (\d+)%", line)
    return (int(percent[1]) if percent else 0), line


def wait(running):
    """Shows the slowest part until all have ended; the first failure ends them all."""
    running = [(process, base) for process, base in running if process]
    start, end, shown_last = ("\r", "\033[K", "") if sys.stderr.isatty() else ("", "\n", "")
    while True:
        going = [process for process, _ in running if process.poll() is None]
        for process, base in running:
            if process.poll():
                for other in going:
                    other.terminate()
                sys.exit(f"{base}.log: {progress(Path(f'{base}.log'))[1]}")
        if not going:
            break
        slowest = min((progress(Path(f"{base}.log")) for _, base in running), key=lambda shown: shown[0])
        if slowest[1] != shown_last:
            print(start, slowest[1], sep="", end=end, file=sys.stderr, flush=True)
            shown_last = slowest[1]
        time.sleep(2)
    if sys.stderr.isatty():
        print(file=sys.stderr)


def merge(parts, specs):
    """Rows in the order of the list behind the reference, which every part has measured with the same result."""
    first = parts[0]["rows"][0]
    for part in parts:
        for column in ("spec", "ppl", "kv_bytes_used", "tokens"):
            if part["rows"][0][column] != first[column]:
                sys.exit(f"the parts disagree about {first['spec']}: {column} {part['rows'][0][column]}, {first[column]}")
    found = {spec: row for part, names in parts_and_names(parts, specs) for spec, row in zip(names, part["rows"][1:])}
    return {**parts[0], "rows": [first] + [found[spec] for spec in specs]}


def parts_and_names(parts, specs):
    return [(part, specs[i::len(parts)]) for i, part in enumerate(parts)]


def number(value):
    return "0" if value == 0 else f"{value:.6f}" if value < 0.01 else f"{value:.4f}"


def markdown(rows):
    lines = ["| cache | bits_spec | bits_effective | KV bytes | ratio | KL mean | KL p99 | top-1 | perplexity |",
             "|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        name = "raw TurboQuant, 4 bits ¹" if row["spec"] == RAW else f"`{row['spec']}`"
        bits = f"{row['bits_spec']:.3f}".rstrip("0").rstrip(".")
        lines.append(f"| {name} | {bits} | {row['bits_effective']:.2f} | {row['kv_bytes_used']:,} | "
                     f"{row['ratio']:.2f}x | {number(row['kl_mean'])} | {row['kl_p99']:.4f} | {100 * row['top1']:.2f}% | "
                     f"{row['ppl']:.3f} ({100 * row['dppl']:+.2f}%) |")
    note = f"\n¹ `{RAW}`\n" if any(row["spec"] == RAW for row in rows) else ""
    return "\n".join(lines) + "\n" + note


def main():
    args = options()
    specs = LISTS.get(args.kv) or args.kv.split(",")
    args.processes = min(args.processes, len(specs))
    args.threads = args.threads or max(1, (os.cpu_count() or 2) // args.processes)
    args.out.mkdir(parents=True, exist_ok=True)
    claim(args, specs)
    running = [start(args, part, specs[part::args.processes]) for part in range(args.processes)]
    try:
        wait(running)
    except KeyboardInterrupt:
        for process, _ in running:
            if process:
                process.terminate()
        sys.exit("\nstopped; the same command goes on")
    result = merge([json.loads(Path(f"{base}.json").read_text(encoding="utf-8")) for _, base in running], specs)
    (args.out / f"{args.ctx}.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    table = markdown(result["rows"])
    (args.out / f"{args.ctx}.md").write_text(table, encoding="utf-8")
    print(table, end="")
    row = result["rows"][0]
    print(f"\n{row['context']} tokens a context, {row['tokens']} scored; {result['commit']} on {result['machine']}")


if __name__ == "__main__":
    main()
