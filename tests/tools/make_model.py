# SPDX-License-Identifier: Apache-2.0
"""Makes the GGUF files that the tests load: f32 copies, small random models, cut-off files."""
import argparse
import contextlib
import hashlib
import itertools
import json
import os
import signal
import string
import sys
import zlib
from pathlib import Path

# gguf and numpy are imported where they are used: --help and a skipped call need neither and stay fast.

EPILOG = """\
examples:
  make_model.py f32 --in MODEL.gguf --out MODEL.f32.gguf
  make_model.py random --heads 8 --kv-heads 2 --head-dim 64 --out gqa4.gguf
  make_model.py random --arch gemma2 --heads 4 --window 128 --out window.gguf
  make_model.py truncate --in MODEL.gguf --bytes 100000 --out cut.gguf
  make_model.py info gqa4.gguf

A file appears under its name only once it is whole. OUT.json beside it holds the arguments that made it; a
second call with the same arguments, the same input and the same script does nothing. Delete OUT to make it anew.

exit code: 0 done or up to date, 2 wrong arguments or input (the reason is on stderr)
packages: requirements.txt beside this script"""

RANDOM_HELP = """\
A small model with seeded random f32 weights and a byte tokenizer that needs no other file. Its text is noise;
its attention has the shape asked for.

  llama   rotary positions, gated feed-forward; --embd may differ from heads * head-dim
  qwen2   as llama, with biases on Q, K and V
  mpt     ALiBi instead of rotary positions, LayerNorm, fused QKV
  gemma2  soft cap on the attention scores; every second layer, from the first on, sees --window tokens only"""

BYTE_TOKENS = 256
SPECIAL_TOKENS = ["<unk>", "<s>", "</s>"]
MIN_VOCAB = len(SPECIAL_TOKENS) + BYTE_TOKENS + 1  # one piece at least: the space mark
MAX_VOCAB = 10000  # pieces of up to three letters


class UserError(Exception):
    """Wrong arguments or input: main() prints it and exits with 2."""


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
    made_by["script"] = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
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


def write_f32(source, path):
    import gguf
    import numpy as np

    integers = {gguf.GGMLQuantizationType[t] for t in ("I8", "I16", "I32", "I64")}
    reader = open_gguf(source)
    if value(reader, "split.count", 1) > 1:
        raise UserError(f"{source} is one part of a split model: merge the parts first")
    arch = value(reader, "general.architecture")
    if not arch:
        raise UserError(f"{source} has no general.architecture")

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
    with contextlib.closing(writer):
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for t in reader.tensors:  # one in memory at a time
            writer.write_tensor_data(convert(t))


# --- random --------------------------------------------------------------------------------------------------


def check_random(args):
    width = args.heads * args.head_dim
    if args.kv_heads is None:
        args.kv_heads = args.heads
    if args.embd is None:
        args.embd = width
    if args.ffn is None:
        args.ffn = min(args.embd, 256)
    if args.heads % args.kv_heads:
        raise UserError(f"--heads {args.heads} is not a multiple of --kv-heads {args.kv_heads}")
    if args.head_dim % 2:
        raise UserError("--head-dim must be even")
    if args.arch in ("qwen2", "mpt") and args.embd != width:
        raise UserError(f"--arch {args.arch} needs --embd = heads * head-dim = {width}")
    if not MIN_VOCAB <= args.vocab <= MAX_VOCAB:
        raise UserError(f"--vocab must be {MIN_VOCAB} to {MAX_VOCAB}")
    if args.arch != "gemma2":
        for name in ("window", "softcap"):
            if getattr(args, name) is not None:
                raise UserError(f"--arch {args.arch} has no --{name}: use --arch gemma2")
    else:
        args.window = args.window or 256
        args.softcap = args.softcap or 5.0


def add_tokenizer(writer, vocab):
    """SentencePiece kind: three special tokens, one token a byte, then pieces of one to three characters."""
    import gguf

    space = "\u2581"
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    single = [space, *letters, *string.digits, *string.punctuation, *letters.upper()]
    pairs = (a + b for a, b in itertools.product(space + letters, letters))
    triples = (a + b for a, b in itertools.product((x + y for x, y in itertools.product(letters, letters)), letters))
    count = vocab - len(SPECIAL_TOKENS) - BYTE_TOKENS
    pieces = list(itertools.islice(itertools.chain(single, pairs, triples), count))
    kind = gguf.TokenType
    types = [kind.UNKNOWN, kind.CONTROL, kind.CONTROL] + [kind.BYTE] * BYTE_TOKENS + [kind.NORMAL] * count
    writer.add_tokenizer_model("llama")
    writer.add_token_list(SPECIAL_TOKENS + [f"<0x{b:02X}>" for b in range(BYTE_TOKENS)] + pieces)
    writer.add_token_scores([0.0] * (len(SPECIAL_TOKENS) + BYTE_TOKENS) + [-float(i) for i in range(count)])
    writer.add_token_types([int(t) for t in types])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)


def write_random(args, path):
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(path, args.arch)
    embd, layers, dim = args.embd, args.layers, args.head_dim
    q_width, kv_width = args.heads * dim, args.kv_heads * dim

    writer.add_name(f"random {args.arch}")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(args.vocab)
    writer.add_context_length(args.ctx)
    writer.add_embedding_length(embd)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(args.ffn)
    writer.add_head_count(args.heads)
    writer.add_head_count_kv(args.kv_heads)
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    if args.arch == "mpt":
        writer.add_layer_norm_eps(1e-5)
        writer.add_max_alibi_bias(8.0)
    else:
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_dimension_count(dim)
        writer.add_rope_freq_base(10000.0)
    if args.arch == "gemma2":
        writer.add_sliding_window(args.window)
        writer.add_attn_logit_softcapping(args.softcap)
        writer.add_final_logit_softcapping(30.0)
    add_tokenizer(writer, args.vocab)

    def normal(name, shape, mean, std):
        # A stream of its own for each tensor: one option changes no other tensor than those whose shape it sets.
        rng = np.random.default_rng([args.seed, zlib.crc32(name.encode())])
        writer.add_tensor(name, mean + np.float32(std) * rng.standard_normal(shape, dtype=np.float32))

    # 1/sqrt(inputs) keeps Q, K, V and the logits near unit size: attention is neither flat nor chaotic.
    def matrix(name, rows, inputs):
        normal(name + ".weight", (rows, inputs), np.float32(0), inputs**-0.5)

    def norm(name):
        normal(name + ".weight", (embd,), np.float32(1), 0.1)

    matrix("token_embd", args.vocab, embd)
    for i in range(layers):
        blk = f"blk.{i}."
        norm(blk + "attn_norm")
        if args.arch == "mpt":
            matrix(blk + "attn_qkv", q_width + 2 * kv_width, embd)
        else:
            for name, width in (("attn_q", q_width), ("attn_k", kv_width), ("attn_v", kv_width)):
                matrix(blk + name, width, embd)
                if args.arch == "qwen2":
                    normal(blk + name + ".bias", (width,), np.float32(0), 0.5)
        matrix(blk + "attn_output", embd, q_width)
        norm(blk + "ffn_norm")
        if args.arch != "mpt":
            matrix(blk + "ffn_gate", args.ffn, embd)
        matrix(blk + "ffn_up", args.ffn, embd)
        matrix(blk + "ffn_down", embd, args.ffn)
        if args.arch == "gemma2":
            norm(blk + "post_attention_norm")
            norm(blk + "post_ffw_norm")
    norm("output_norm")
    if args.arch != "gemma2":  # it uses token_embd again
        matrix("output", args.vocab, embd)

    with contextlib.closing(writer):
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()


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

    sub = command("random", "small model with random f32 weights", RANDOM_HELP)
    count = at_least(1)
    sub.add_argument("--arch", choices=("llama", "qwen2", "mpt", "gemma2"), default="llama", help="default llama")
    sub.add_argument("--layers", type=count, default=2, metavar="N", help="default 2")
    sub.add_argument("--heads", type=count, default=4, metavar="H", help="query heads, default 4")
    sub.add_argument("--kv-heads", type=count, metavar="HKV", help="K and V heads, a divisor of H, default H")
    sub.add_argument("--head-dim", type=count, default=64, metavar="D", help="default 64")
    sub.add_argument("--embd", type=count, metavar="E", help="default H * D; --embd 256 keeps wide models small")
    sub.add_argument("--ffn", type=count, metavar="F", help="feed-forward width, default E, 256 at most")
    sub.add_argument("--vocab", type=int, default=320, metavar="V", help=f"{MIN_VOCAB} to {MAX_VOCAB}, default 320")
    sub.add_argument("--ctx", type=count, default=4096, metavar="C", help="trained context length, default 4096")
    sub.add_argument("--window", type=count, metavar="W", help="gemma2: sliding window, default 256")
    sub.add_argument(
        "--softcap", type=positive_float, metavar="S", help="gemma2: default 5, so low that a wrong cap shows in logits"
    )
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
