# SPDX-License-Identifier: Apache-2.0
"""Makes the GGUF files that the tests load: f32 copies, hard-key models, small random models, cut-off files."""
import argparse
import contextlib
import hashlib
import json
import os
import signal
import sys
from pathlib import Path

from hard_keys import HARD_KEYS_HELP, hard_key_tensors
from random_archs import ARCHS
from random_model import MAX_VOCAB, MIN_VOCAB, RANDOM_HELP, UserError, check_random, write_random

# gguf and numpy are imported where they are used: --help and a skipped call need neither and stay fast.

EPILOG = """\
examples:
  make_model.py f32 --in MODEL.gguf --out MODEL.f32.gguf
  make_model.py hard-keys --in MODEL.gguf --norm 600 --out MODEL.hard.gguf
  make_model.py random --heads 8 --kv-heads 2 --head-dim 64 --out gqa4.gguf
  make_model.py random --arch gemma2 --heads 4 --window 128 --out window.gguf
  make_model.py truncate --in MODEL.gguf --bytes 100000 --out cut.gguf
  make_model.py info gqa4.gguf

A file appears under its name only once it is whole. OUT.json beside it holds the arguments that made it; a
second call with the same arguments, the same input and the same script does nothing. Delete OUT to make it anew.

exit code: 0 done or up to date, 2 wrong arguments or input (the reason is on stderr)
packages: requirements.txt beside this script"""

# --- files ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def atomic_output(path):
    """Yields a temporary name beside `path`; renamed to it when the block succeeds, removed when not."""
    tmp = path.with_name(f"{path.name}.tmp.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield tmp
        os.replace(tmp, path)
    finally:
        tmp.unlink(missing_ok=True)


def input_identity(path):
    try:
        stat = path.stat()
    except OSError as e:
        raise UserError(f"cannot read {path}: {e.strerror}") from e
    if not path.is_file():
        raise UserError(f"{path} is not a file")
    return {"path": str(path.resolve()), "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def make_output(args, write):
    """Calls write(temporary name) unless args.out was made by the same arguments before."""
    out = args.out
    made_by = {k: v for k, v in vars(args).items() if k not in ("run", "input", "out")}
    sources = sorted(Path(__file__).parent.glob("*.py"))
    made_by["script"] = hashlib.sha256(b"".join(p.read_bytes() for p in sources)).hexdigest()
    if hasattr(args, "input"):
        made_by["in"] = input_identity(args.input)
        if out.resolve() == args.input.resolve():
            raise UserError("--in and --out are the same file")
    if out.is_dir():
        raise UserError(f"{out} is a folder: give a file name")
    note = out.with_name(out.name + ".json")
    try:
        known = json.loads(note.read_text())
        if known == {**made_by, "out_size": out.stat().st_size}:
            print(f"{out}: up to date")
            return
    except (OSError, ValueError):
        pass  # no usable note: make the file
    note.unlink(missing_ok=True)  # never a new file beside the old arguments
    with atomic_output(out) as tmp:
        write(tmp)
        size = tmp.stat().st_size
    with atomic_output(note) as tmp:
        tmp.write_text(json.dumps({**made_by, "out_size": size}, indent=1) + "\n")
    print(f"{out}: {size} bytes")


# --- reading -------------------------------------------------------------------------------------------------


def open_gguf(path):
    import gguf

    input_identity(path)
    try:
        reader = gguf.GGUFReader(path)
    except PermissionError as e:
        raise UserError(f"cannot read {path}: {e.strerror}") from e
    except Exception as e:  # the reader's checks are few: a broken file fails in many ways
        raise UserError(f"{path} is not a whole GGUF file ({type(e).__name__}: {e})") from e
    if reader.byte_order != "I":
        raise UserError(f"{path} has the other byte order")
    return reader


def value(reader, key, default=None):
    field = reader.get_field(key)
    return default if field is None else field.contents()


def raw_value(field):
    """The value as GGUFWriter takes it; strings stay bytes, so that none has to be valid UTF-8."""
    import gguf

    if field.types[-1] != gguf.GGUFValueType.STRING:
        return field.contents()
    strings = [field.parts[i].tobytes() for i in field.data]
    return strings if field.types[0] == gguf.GGUFValueType.ARRAY else strings[0]


# --- f32 -----------------------------------------------------------------------------------------------------


def write_f32(source, path, more=None):
    """more: what gives, for a reader, further tensors {name: f32 array}."""
    import gguf
    import numpy as np

    integers = {gguf.GGMLQuantizationType[t] for t in ("I8", "I16", "I32", "I64")}
    reader = open_gguf(source)
    if value(reader, "split.count", 1) > 1:
        raise UserError(f"{source} is one part of a split model: merge the parts first")
    arch = value(reader, "general.architecture")
    if not arch:
        raise UserError(f"{source} has no general.architecture")
    added = more(reader, arch) if more else {}
    for name in added:
        if any(t.name == name for t in reader.tensors):
            raise UserError(f"{source} has a tensor {name} of its own")

    writer = gguf.GGUFWriter(path, arch)
    writer.data_alignment = int(reader.alignment)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        if name == "general.file_type":
            writer.add_file_type(gguf.LlamaFileType.ALL_F32)  # here, to keep the order of the keys
            continue
        if field.types[0] == gguf.GGUFValueType.ARRAY and len(field.types) != 2:
            print(f"note: {name} is an empty or nested array, not copied", file=sys.stderr)
            continue
        writer.add_key_value(name, raw_value(field), field.types[0], field.types[-1] if len(field.types) == 2 else None)
    if "general.file_type" not in reader.fields:
        writer.add_file_type(gguf.LlamaFileType.ALL_F32)

    def convert(tensor):
        if tensor.tensor_type in integers:
            return np.ascontiguousarray(tensor.data)
        if tensor.tensor_type == gguf.GGMLQuantizationType.F64:
            return tensor.data.astype(np.float32)
        try:
            return np.ascontiguousarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type))
        except NotImplementedError as e:
            kind = tensor.tensor_type.name
            raise UserError(f"{source}: {tensor.name} has type {kind}, which gguf cannot dequantise") from e

    for t in reader.tensors:
        dtype = t.data.dtype if t.tensor_type in integers else np.dtype(np.float32)
        writer.add_tensor_info(t.name, [int(n) for n in reversed(t.shape)], dtype, t.n_elements * dtype.itemsize)
    for name, tensor in added.items():
        writer.add_tensor_info(name, list(tensor.shape), tensor.dtype, tensor.nbytes)
    with contextlib.closing(writer):
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for t in reader.tensors:  # one in memory at a time
            writer.write_tensor_data(convert(t))
        for tensor in added.values():
            writer.write_tensor_data(tensor)


# --- truncate and info ---------------------------------------------------------------------------------------


def write_truncated(args, path):
    size = input_identity(args.input)["size"]
    if args.bytes >= size:
        raise UserError(f"--bytes {args.bytes} cuts nothing off: {args.input} has {size} bytes")
    left = args.bytes
    with open(args.input, "rb") as source, open(path, "wb") as out:
        while left:
            block = source.read(min(left, 1 << 20))
            if not block:
                raise UserError(f"{args.input} became shorter while it was read")
            out.write(block)
            left -= len(block)


def print_info(args):
    reader = open_gguf(args.file)
    arch = value(reader, "general.architecture")

    def of_arch(key, default=None):
        return value(reader, f"{arch}.{key}", default)

    heads, embd = of_arch("attention.head_count"), of_arch("embedding_length")
    dim = embd // heads if isinstance(heads, int) and heads and isinstance(embd, int) else None
    tokens = reader.get_field("tokenizer.ggml.tokens")
    types = {}
    for t in reader.tensors:
        types[t.tensor_type.name] = types.get(t.tensor_type.name, 0) + 1
    lines = {
        "arch": arch,
        "name": value(reader, "general.name"),
        "layers": of_arch("block_count"),
        "heads": heads,
        "kv-heads": of_arch("attention.head_count_kv", heads),
        "head-dim-k": of_arch("attention.key_length", dim),
        "head-dim-v": of_arch("attention.value_length", dim),
        "embd": embd,
        "ffn": of_arch("feed_forward_length"),
        "ctx": of_arch("context_length"),
        "window": of_arch("attention.sliding_window"),
        "vocab": len(tokens.data) if tokens else of_arch("vocab_size"),
        "tensors": " ".join(f"{name}={count}" for name, count in sorted(types.items())),
    }
    for name, what in lines.items():
        if what is not None:
            print(f"{name}: {what}")


# --- command line --------------------------------------------------------------------------------------------


def at_least(low, limit=2**31):
    def parse(text):
        number = int(text)
        if not low <= number < limit:
            raise argparse.ArgumentTypeError(f"must be at least {low} and less than {limit}, not {number}")
        return number

    parse.__name__ = "whole number"
    return parse


def positive_float(text):
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be more than 0, not {text}")
    return number


def parse_arguments():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, epilog=EPILOG, formatter_class=raw, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name, help_text, description=None):
        about = description or help_text
        return commands.add_parser(name, help=help_text, description=about, formatter_class=raw, allow_abbrev=False)

    def add_in_out(sub, has_in=True):
        if has_in:
            sub.add_argument("--in", dest="input", type=Path, required=True, metavar="MODEL", help="GGUF file to read")
        sub.add_argument("--out", type=Path, required=True, metavar="OUT", help="file to write")

    sub = command("f32", "copy of a GGUF file with every tensor dequantised to f32 and all metadata kept")
    add_in_out(sub)
    sub.set_defaults(run=lambda args: make_output(args, lambda path: write_f32(args.input, path)))

    sub = command("hard-keys", "f32 copy whose keys have a large constant offset", HARD_KEYS_HELP)
    add_in_out(sub)
    sub.add_argument("--norm", type=at_least(0), default=600, metavar="N", help="of the offset, default 600; 0: none")

    def run_hard_keys(args):
        make_output(
            args,
            lambda path: write_f32(args.input, path, lambda reader, arch: hard_key_tensors(reader, arch, args.norm)),
        )

    sub.set_defaults(run=run_hard_keys)

    sub = command("random", "model with random weights", RANDOM_HELP)
    count = at_least(1)
    sub.add_argument("--arch", choices=ARCHS, default="llama", metavar="ARCH", help="default llama")
    sub.add_argument("--layers", type=count, metavar="N", help="default 2 to 4, of gemma3n 25")
    sub.add_argument("--heads", type=count, default=4, metavar="H", help="query heads, default 4")
    sub.add_argument("--kv-heads", type=count, metavar="HKV", help="K and V heads, a divisor of H, default H")
    sub.add_argument("--head-dim", type=count, default=64, metavar="D", help="default 64")
    sub.add_argument("--embd", type=count, metavar="E", help="default H * D; --embd 256 keeps wide models small")
    sub.add_argument("--ffn", type=count, metavar="F", help="feed-forward width, default E, 256 at most")
    sub.add_argument("--vocab", type=int, default=320, metavar="V", help=f"{MIN_VOCAB} to {MAX_VOCAB}, default 320")
    sub.add_argument("--ctx", type=count, default=4096, metavar="C", help="trained context length, default 4096")
    sub.add_argument("--window", type=count, metavar="W", help="gemma2, gemma3, gemma3n, gpt-oss: default 256 or 128")
    sub.add_argument("--latent", type=count, metavar="L", help="deepseek2: default head-dim")
    sub.add_argument("--trained", type=count, metavar="C", help="phi3: default 512")
    sub.add_argument(
        "--softcap", type=positive_float, metavar="S", help="gemma2: default 5, so low that a wrong cap shows in logits"
    )
    sub.add_argument("--type", choices=("f32", "q4_0"), default="f32", help="of matrices, default f32")
    sub.add_argument("--seed", type=at_least(0), default=0, metavar="S", help="default 0")
    add_in_out(sub, has_in=False)

    def run_random(args):
        check_random(args)
        make_output(args, lambda path: write_random(args, path))

    sub.set_defaults(run=run_random)

    sub = command("truncate", "the first N bytes of a file")
    add_in_out(sub)
    size = at_least(0, 2**63)
    sub.add_argument("--bytes", type=size, required=True, metavar="N", help="bytes to keep, fewer than MODEL has")
    sub.set_defaults(run=lambda args: make_output(args, lambda path: write_truncated(args, path)))

    sub = command("info", "prints what a GGUF file holds, a 'name: value' line each")
    sub.add_argument("file", type=Path, metavar="FILE")
    sub.set_defaults(run=print_info)
    return parser.parse_args()


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so that no temporary file stays
    args = parse_arguments()
    try:
        args.run(args)
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as e:
        print(f"error: no Python package {e.name}: pip install -r requirements.txt beside this script", file=sys.stderr)
        return 2
    except OSError as e:
        print(f"error: {e.filename}: {e.strerror}" if e.filename else f"error: {e}", file=sys.stderr)
        return 2
    except MemoryError:
        print("error: not enough memory for a model of this size", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
