# SPDX-License-Identifier: Apache-2.0
"""GGUF models with seeded random weights, for make_model.py."""
import contextlib
import itertools
import string
import zlib

from random_archs import ARCHS, is_conv

# gguf and numpy are imported where they are used, as in make_model.py.

RANDOM_HELP = """\
A model with seeded random weights, small by default, and a byte tokenizer that needs no other file. Its text is noise;
its attention has the shape asked for.

""" + "\n".join(f"  {name:10} {arch.help}" for name, arch in ARCHS.items())

BYTE_TOKENS = 256
SPECIAL_TOKENS = ["<unk>", "<s>", "</s>"]
MIN_VOCAB = len(SPECIAL_TOKENS) + BYTE_TOKENS + 1  # one piece at least: the space mark
MAX_VOCAB = 400000  # pieces of up to four letters


class UserError(Exception):
    """Wrong arguments or input: main() prints it and exits with 2."""


def check_random(args):
    arch = ARCHS[args.arch]
    width = args.heads * args.head_dim
    if args.layers is None:
        args.layers = arch.layers
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
    if arch.embd_is_width and args.embd != width:
        raise UserError(f"--arch {args.arch} needs --embd = heads * head-dim = {width}")
    if args.type == "q4_0" and any(n % 32 for n in (args.embd, args.ffn, width)):
        raise UserError("--type q4_0 needs --embd, --ffn and heads * head-dim that are multiples of 32")
    if not MIN_VOCAB <= args.vocab <= MAX_VOCAB:
        raise UserError(f"--vocab must be {MIN_VOCAB} to {MAX_VOCAB}")
    for name in ("window", "softcap", "latent", "trained"):
        if name in arch.options:
            setattr(args, name, getattr(args, name) or arch.options[name])
        elif getattr(args, name) is not None:
            of = ", ".join(n for n, a in ARCHS.items() if name in a.options)
            raise UserError(f"--arch {args.arch} has no --{name}: use --arch {of}")
    if args.latent == 0:
        args.latent = args.head_dim


def add_tokenizer(writer, vocab):
    """SentencePiece kind: three special tokens, one token a byte, then pieces of one to four characters."""
    import gguf

    space = "\u2581"
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    single = [space, *letters, *string.digits, *string.punctuation, *letters.upper()]
    pairs = (a + b for a, b in itertools.product(space + letters, letters))
    triples = map("".join, itertools.product(letters, repeat=3))
    quads = map("".join, itertools.product(letters, repeat=4))
    count = vocab - len(SPECIAL_TOKENS) - BYTE_TOKENS
    pieces = list(itertools.islice(itertools.chain(single, pairs, triples, quads), count))
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


class Builder:
    """Writes tensors and metadata of one model."""

    def __init__(self, args, writer):
        self.args, self.writer = args, writer
        self.embd, self.ffn, self.dim = args.embd, args.ffn, args.head_dim
        self.q_width, self.kv_width = args.heads * args.head_dim, args.kv_heads * args.head_dim

    def u32(self, key, value):
        self.writer.add_uint32(f"{self.args.arch}.{key}", value)

    def f32(self, key, value):
        self.writer.add_float32(f"{self.args.arch}.{key}", value)

    def string(self, key, value):
        self.writer.add_string(f"{self.args.arch}.{key}", value)

    def normal(self, name, shape, mean, std):
        import gguf
        import numpy as np

        # A stream of its own for each tensor: one option changes no other tensor than those whose shape it sets.
        rng = np.random.default_rng([self.args.seed, zlib.crc32(name.encode())])
        values = np.float32(mean) + np.float32(std) * rng.standard_normal(shape, dtype=np.float32)
        if self.args.type == "q4_0" and len(shape) == 2:
            kind = gguf.GGMLQuantizationType.Q4_0
            self.writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            self.writer.add_tensor(name, values)

    # 1/sqrt(inputs) keeps Q, K, V and the logits near unit size: attention is neither flat nor chaotic.
    def matrix(self, name, rows, inputs):
        self.normal(name + ".weight", (rows, inputs), 0, inputs**-0.5)

    def norm(self, name, width=None, mean=1.0):
        self.normal(name + ".weight", (width or self.embd,), mean, 0.1 * mean)


def write_keys(b, arch):
    import gguf

    args, writer = b.args, b.writer
    file_types = {"f32": gguf.LlamaFileType.ALL_F32, "q4_0": gguf.LlamaFileType.MOSTLY_Q4_0}
    mla = args.latent is not None
    kv_heads = 1 if mla else args.kv_heads
    if args.arch == "lfm2":
        kv_heads = [0 if is_conv(i) else args.kv_heads for i in range(args.layers)]
    # A "phi3" in the name makes llama.cpp look for tokens of Phi-3's own tokenizer.
    writer.add_name("random " + args.arch.replace("phi3", "phi 3"))
    writer.add_file_type(file_types[args.type])
    writer.add_vocab_size(args.vocab)
    writer.add_context_length(args.ctx)
    writer.add_embedding_length(args.embd)
    writer.add_block_count(args.layers)
    writer.add_feed_forward_length(args.ffn)
    writer.add_head_count(args.heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(args.latent + b.dim if mla else b.dim)
    writer.add_value_length(args.latent if mla else b.dim)
    if args.arch != "mpt":
        writer.add_layer_norm_rms_eps(1e-5)
    if arch.rope:
        writer.add_rope_dimension_count(b.dim)
        writer.add_rope_freq_base(10000.0)
    arch.keys(b)


def write_random(args, path):
    import gguf

    arch = ARCHS[args.arch]
    writer = gguf.GGUFWriter(path, args.arch)
    b = Builder(args, writer)
    write_keys(b, arch)
    add_tokenizer(writer, args.vocab)
    b.matrix("token_embd", args.vocab, b.embd)
    for i in range(args.layers):
        arch.layer(b, i)
    arch.more(b)
    if args.arch != "t5":
        b.norm("token_embd_norm" if args.arch == "lfm2" else "output_norm")
    if not arch.tied:
        b.matrix("output", args.vocab, b.embd)
    with contextlib.closing(writer):
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
