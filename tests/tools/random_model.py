# SPDX-License-Identifier: Apache-2.0
"""GGUF models with seeded random weights, for make_model.py."""
import contextlib
import itertools
import string
import zlib

# gguf and numpy are imported where they are used, as in make_model.py.

RANDOM_HELP = """\
A model with seeded random weights, small by default, and a byte tokenizer that needs no other file. Its text is noise;
its attention has the shape asked for.

  llama   rotary positions, gated feed-forward; --embd may differ from heads * head-dim
  qwen2   as llama, with biases on Q, K and V
  mpt     ALiBi instead of rotary positions, LayerNorm, fused QKV
  gemma2  soft cap on the attention scores; every second layer, from the first on, sees --window tokens only"""

BYTE_TOKENS = 256
SPECIAL_TOKENS = ["<unk>", "<s>", "</s>"]
MIN_VOCAB = len(SPECIAL_TOKENS) + BYTE_TOKENS + 1  # one piece at least: the space mark
MAX_VOCAB = 400000  # pieces of up to four letters


class UserError(Exception):
    """Wrong arguments or input: main() prints it and exits with 2."""


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
    if args.type == "q4_0" and any(n % 32 for n in (args.embd, args.ffn, width)):
        raise UserError("--type q4_0 needs --embd, --ffn and heads * head-dim that are multiples of 32")
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


def write_random(args, path):
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(path, args.arch)
    embd, layers, dim = args.embd, args.layers, args.head_dim
    q_width, kv_width = args.heads * dim, args.kv_heads * dim

    writer.add_name(f"random {args.arch}")
    file_types = {"f32": gguf.LlamaFileType.ALL_F32, "q4_0": gguf.LlamaFileType.MOSTLY_Q4_0}
    writer.add_file_type(file_types[args.type])
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
        values = mean + np.float32(std) * rng.standard_normal(shape, dtype=np.float32)
        if args.type == "q4_0" and len(shape) == 2:
            kind = gguf.GGMLQuantizationType.Q4_0
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)

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
