# SPDX-License-Identifier: Apache-2.0
"""tersekv-py: quality of packed caches of a Hugging Face model, and a server for it."""
import argparse
import datetime
import json
import os
import pathlib
import platform
import sys

EXAMPLES = """examples:
  tersekv-py eval -m MODEL --file wiki.test.raw --kv k4v4,k3v3 --json rows.json
  tersekv-py validate -m MODEL --prompts prompts.txt --kv k8v8
  tersekv-py serve -m MODEL --kv k4v4 --port 8000
  tersekv-py doctor

MODEL: what Transformers loads (a folder), or a .gguf file of an architecture that Transformers reads.
"""


def load(model, dtype):
    """-> model, tokenizer"""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    path, options = pathlib.Path(model), {}
    if path.suffix == ".gguf":
        if not path.exists():
            raise ValueError(f"'{model}' is not there")
        model, options = str(path.parent), {"gguf_file": path.name}
    tokenizer = AutoTokenizer.from_pretrained(model, **options)
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype), **options).eval()
    return loaded, tokenizer


def report(rows, arguments):
    from tersekv import _core
    envelope = {"rows": rows, "tersekv_version": _core.version(), "commit": _core.commit(),
                "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, "
                           f"{_core.num_threads()} threads",
                "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
    if arguments.json == "-":
        print(json.dumps(envelope, indent=1))
    elif arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(envelope, indent=1) + "\n")
    return envelope


def run_eval(arguments):
    from tersekv.evaluate import evaluate
    specs = checked_specs(arguments.kv)
    text = pathlib.Path(arguments.file).read_text()
    model, tokenizer = load(arguments.model, arguments.dtype)
    ids = tokenizer(text, return_tensors="pt").input_ids[0]
    rows = evaluate(model, ids, specs, arguments.context, arguments.stride, arguments.windows, arguments.prefill,
                    arguments.quiet)
    if arguments.json != "-":
        print(f"{'spec':28} {'ratio':>6} {'KL mean':>10} {'KL p99':>10} {'top-1':>7} {'perplexity':>10} {'change':>8}")
        for row in rows:
            print(f"{row['spec']:28} {row['ratio']:5.2f}x {row['kl_mean']:10.6f} {row['kl_p99']:10.5f} "
                  f"{row['top1']:6.2%} {row['ppl']:10.3f} {row['dppl']:+8.2%}")
    report(rows, arguments)
    return 0


def run_validate(arguments):
    from tersekv.evaluate import validate
    spec, = checked_specs(arguments.kv)
    prompts = [line for line in pathlib.Path(arguments.prompts).read_text().splitlines() if line.strip()]
    if not prompts:
        raise ValueError(f"'{arguments.prompts}' has no prompts: one a line")
    model, tokenizer = load(arguments.model, arguments.dtype)
    result = validate(model, [tokenizer(p, return_tensors="pt").input_ids for p in prompts], spec, arguments.tokens,
                      arguments.quiet)
    if arguments.json != "-":
        print(f"{result['spec']}: {result['agreement']:.2%} of {result['tokens']} tokens agree with DynamicCache, "
              f"{result['identical']} of {result['prompts']} answers are identical")
    report([result], arguments)
    return 0 if result["agreement"] >= arguments.least else 1


def run_serve(arguments):
    from tersekv.serve import serve
    checked_specs(arguments.kv)
    model, tokenizer = load(arguments.model, arguments.dtype)
    name = arguments.name or pathlib.Path(arguments.model).name
    serve(model, tokenizer, arguments.kv, name, arguments.host, arguments.port)
    return 0


def run_doctor(_):
    from tersekv import doctor
    return doctor.main()


def checked_specs(text):
    from tersekv import _core
    specs = text.split(",")
    for spec in specs:
        _core.canonical(spec)
    return specs


def parser():
    top = argparse.ArgumentParser(prog="tersekv-py", description=__doc__, epilog=EXAMPLES,
                                  formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(dest="command", required=True, metavar="command")

    def add(name, run, text):
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        return command

    def add_model(command, kv):
        command.add_argument("-m", "--model", required=True, help="folder or .gguf file")
        command.add_argument("--kv", default=kv, metavar="SPEC", help="how the cache is stored (default: %(default)s)")
        command.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))

    def add_output(command):
        command.add_argument("--json", metavar="FILE", help="also write the rows as JSON; - prints them instead")
        command.add_argument("--quiet", action="store_true", help="no progress")

    command = add("eval", run_eval, "Sliding-window perplexity and KL of a text against an exact cache")
    add_model(command, "k4v4")
    command.add_argument("--file", required=True, help="text, e.g. WikiText-2's test part")
    command.add_argument("--context", type=int, default=512)
    command.add_argument("--stride", type=int, help="tokens between windows (default: half the context)")
    command.add_argument("--windows", type=int, help="at most so many")
    command.add_argument("--prefill", default="decode", choices=("decode", "raw"))
    add_output(command)
    command = add("validate", run_validate, "Greedy tokens with a packed cache against DynamicCache; exit code 1 below "
                                            "--least")
    add_model(command, "k8v8")
    command.add_argument("--prompts", required=True, help="text file, one prompt a line")
    command.add_argument("--tokens", type=int, default=64, help="new tokens a prompt (default: %(default)s)")
    command.add_argument("--least", type=float, default=0.0, metavar="F", help="agreement that is demanded, 0 to 1")
    add_output(command)
    command = add("serve", run_serve, "OpenAI-compatible chat server: /v1/chat/completions, /v1/models, /health")
    add_model(command, "k4v4")
    command.add_argument("--name", help="the model's name for clients (default: its file name)")
    command.add_argument("--host", default="127.0.0.1")
    command.add_argument("--port", type=int, default=8000)
    add("doctor", run_doctor, "Check this installation")
    return top


def main(argv=None):
    arguments = parser().parse_args(argv)
    try:
        return arguments.run(arguments)
    except (ValueError, LookupError, OSError, ImportError) as error:
        print(f"tersekv-py: {error}", file=sys.stderr)
        return 1
