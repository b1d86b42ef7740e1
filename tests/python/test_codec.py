# SPDX-License-Identifier: Apache-2.0
"""Codec: bytes as docs/formats.md says, errors as theory says, strides, dtypes, operators under torch.compile."""
import contextlib

import numpy as np
import pytest
import torch

import tersekv
from tersekv import Codec

# Error over power of Lloyd-Max on Gaussian rows (Max 1960), times what the integer levels cost (decision 0001).
DISTORTION = {2: .1175, 3: .0345, 4: .0095, 5: .00252, 6: .00072}


def error(x, y):
    return float(((x.double() - y.double()) ** 2).sum() / (x.double() ** 2).sum())


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_sizes_and_error(head_dim, bits):
    codec = Codec(head_dim, bits)
    x = torch.randn(3, 2, 50, head_dim)
    for compress, decompress in ((codec.compress_k, codec.decompress_k), (codec.compress_v, codec.decompress_v)):
        packed, scales = compress(x)
        assert packed.dtype == torch.uint8 and packed.shape == (3, 2, 50, head_dim * bits // 8)
        assert scales.dtype == torch.bfloat16 and scales.shape == (3, 2, 50)
        assert packed.is_contiguous() and scales.is_contiguous()
        limit = 1.05 * DISTORTION.get(bits, 1e-4)
        if compress == codec.compress_k:  # an unbiased <q, k> costs a little error
            limit /= 1 - limit
        assert 0 < error(x, decompress(packed, scales)) < limit
    stored = packed.numel() + 2 * scales.numel()
    assert codec.ratio == pytest.approx(x.numel() * 2 / stored)


def test_codes_lie_in_channel_order():
    """Codes of 4 bits unpacked by hand against the decoded rows: the largest code belongs to the largest level."""
    codec = Codec(64, spec="k4v4+rot=none")
    x = torch.randn(20, 64)
    packed, scales = codec.compress_v(x)
    codes = torch.stack([packed & 15, packed >> 4], dim=-1).reshape(20, 64).long()
    levels = torch.tensor([5, 15, 25, 36, 48, 62, 79, 104]).double()
    levels = torch.cat([-levels.flip(0), levels])
    decoded = codec.decompress_v(packed, scales).double()
    assert torch.allclose(decoded, scales.double()[:, None] * levels[codes], rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_strides_and_dtypes(dtype):
    codec = Codec(64, 4)
    x = torch.randn(2, 9, 4, 64).to(dtype).transpose(1, 2)  # [2, 4, 9, 64] as attention modules have it
    packed, scales = codec.compress_k(x)
    flat, flat_scales = codec.compress_k(x.float().contiguous())
    assert torch.equal(packed, flat) and torch.equal(scales, flat_scales)
    y = codec.decompress_k(packed, scales, dtype)
    assert y.dtype == dtype and torch.equal(y, codec.decompress_k(packed, scales).to(dtype))


def test_numpy_has_the_bytes_of_torch():
    codec = Codec(128, key_bits=5, value_bits=3)
    x = np.random.default_rng(1).standard_normal((7, 3, 128)).astype(np.float32)
    for side in "kv":
        packed, scales = getattr(codec, f"compress_{side}")(x)
        tensor, tensor_scales = getattr(codec, f"compress_{side}")(torch.from_numpy(x))
        assert np.array_equal(packed, tensor.numpy())
        assert scales.dtype == np.float32 and np.array_equal(scales, tensor_scales.float().numpy())
        got = getattr(codec, f"decompress_{side}")(packed, scales)
        assert np.array_equal(got, getattr(codec, f"decompress_{side}")(tensor, tensor_scales).numpy())
    half = codec.decompress_k(*codec.compress_k(x), dtype=np.float16)
    assert half.dtype == np.float16


def test_many_rows_on_any_number_of_threads():
    x = torch.randn(5000, 64)
    before = tersekv.num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            tersekv.set_num_threads(threads)
            assert tersekv.num_threads() == threads
            results.append(Codec(64, 4).compress_k(x))
    finally:
        tersekv.set_num_threads(before)
    for packed, scales in results[1:]:
        assert torch.equal(packed, results[0][0]) and torch.equal(scales, results[0][1])


def test_fit_takes_offsets_off():
    offsets = 20 * torch.randn(64)
    x = torch.randn(500, 64) + offsets
    plain, fitted = Codec(64, 4), Codec(64, 4).fit_k(x[:128]).fit_v(x[:128])
    centred = (x - offsets).pow(2).sum()
    for side in "kv":
        def loss(codec):
            y = getattr(codec, f"decompress_{side}")(*getattr(codec, f"compress_{side}")(x))
            return float((x - y).pow(2).sum() / centred)
        assert loss(plain) > 1 > 0.02 > loss(fitted)


@pytest.mark.parametrize("spec", ["fp8", "int8", "nvfp4", "q4_0", "k3tv3t", "k2.5qv2.5q", "k4pv4p", "f16"])
def test_other_specs_round_trip(spec):
    codec = Codec(64, spec=spec)
    x = torch.randn(40, 64)
    packed, scales = codec.compress_v(x)
    assert error(x, codec.decompress_v(packed, scales)) < 0.07
    assert packed.shape[-1] + (2 if scales is not None else 0) == codec._record_bytes["v"]


def test_under_torch_compile():
    codec = Codec(64, 4)

    def step(x):
        packed, scales = codec.compress_k(x * 2)
        return codec.decompress_k(packed, scales, torch.bfloat16) + 1

    x = torch.randn(2, 3, 5, 64)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), step(x))


def test_operators_keep_their_promises():
    from tersekv import ops
    x = torch.randn(4, 64)
    key = Codec(64, 3)._key("v")
    arguments = (x, key[0], key[1], 0, 0, [], [])
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.tersekv.compress, arguments, test_utils=checks)
    packed, scales = ops.compress(x, key)
    torch.library.opcheck(torch.ops.tersekv.decompress, (packed, scales, 64, *arguments[1:], torch.float32),
                          test_utils=checks)


@pytest.mark.parametrize("make, message", [
    (lambda: Codec(64, 9), "from 2 to 8"),
    (lambda: Codec(64, 4.5), "from 2 to 8"),
    (lambda: Codec(23, 4), "head_dim"),
    (lambda: Codec(64, 4, device="cuda"), "no CUDA"),
    (lambda: Codec(64, 4, device="tpu"), "tpu"),
    (lambda: Codec(64, key_bits=4), "together"),
    (lambda: Codec(64, 3, spec="k4v4"), "choose one"),
    (lambda: Codec(64, spec="k4v44"), "k4v4"),
    (lambda: Codec(64, spec="kivi-k4v4"), "one vector"),
    (lambda: Codec(64).compress_k(torch.zeros(2, 32)), "head_dim = 64"),
    (lambda: Codec(64).compress_k(torch.zeros(64, 2).T), "contiguous"),
    (lambda: Codec(64).compress_k(np.zeros((64, 2), np.float32).T), "contiguous"),
    (lambda: Codec(64).compress_k(torch.zeros(1, 1, 1, 1, 1, 64)), "flatten"),
    (lambda: Codec(64).compress_k(torch.full((2, 64), float("nan"))), "row 0, channel 0"),
    (lambda: Codec(64).decompress_k(torch.zeros(2, 32, dtype=torch.uint8)), "scale"),
    (lambda: Codec(64).decompress_k(torch.zeros(2, 31, dtype=torch.uint8), torch.zeros(2)), "[2, 31]"),
    (lambda: Codec(64).decompress_k(torch.zeros(2, 32, dtype=torch.uint8), torch.zeros(3)), "[2]"),
])
def test_wrong_input_is_named(make, message):
    with pytest.raises(ValueError) as caught:
        make()
    assert message in str(caught.value)


PACKED, SCALES = torch.zeros(6, 32, dtype=torch.uint8), torch.zeros(6, dtype=torch.bfloat16)
PLAIN = ["k4v4", "k", 0, 0, [], []]


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("arguments, error, message", [
    ((PACKED[:, :31], SCALES, 64, *PLAIN, torch.float32), ValueError, "the 32 bytes of a vector"),
    ((PACKED[:, :1].expand(6, 0), SCALES, 64, *PLAIN, torch.float32), ValueError, "[6, 0]"),
    ((PACKED, SCALES, 128, *PLAIN, torch.float32), ValueError, "the 64 bytes of a vector"),
    ((PACKED[0, 0], SCALES, 64, *PLAIN, torch.float32), ValueError, "shape []"),
    ((PACKED, SCALES[:3], 64, *PLAIN, torch.float32), ValueError, "scales have shape [3]"),
    ((PACKED, SCALES[:1], 64, *PLAIN, torch.float32), ValueError, "scales have shape [1]"),
    ((PACKED, SCALES.float(), 64, *PLAIN, torch.float32), TypeError, "bfloat16"),
    ((PACKED.int(), SCALES, 64, *PLAIN, torch.float32), TypeError, "uint8 is needed"),
    ((PACKED, SCALES, 64, *PLAIN, torch.float64), TypeError, "float64"),
    ((PACKED, SCALES, 64, "kivi-k4v4", "k", 0, 0, [], [], torch.float32), ValueError, "whole pages"),
    ((PACKED, SCALES, 64, "k4v4", "k", 0, 0, [0.0] * 32, [], torch.float32), ValueError, "32 channels"),
    ((torch.zeros(()), *PLAIN), ValueError, "no dimensions"),
    ((torch.zeros(2, 64, dtype=torch.float64), *PLAIN), TypeError, "float64"),
    ((torch.zeros(2, 64), "kivi-k4v4", "k", 0, 0, [], []), ValueError, "whole pages"),
])
def test_operators_check_what_they_read(arguments, error, message, fake):
    """The operators themselves, whose arguments nobody has checked before them: no byte outside is read."""
    operator = torch.ops.tersekv.decompress if isinstance(arguments[1], torch.Tensor) else torch.ops.tersekv.compress
    mode = torch._subclasses.FakeTensorMode() if fake else contextlib.nullcontext()
    with mode, pytest.raises(error) as caught:
        operator(*(mode.from_tensor(a) if fake and isinstance(a, torch.Tensor) else a for a in arguments))
    assert message in str(caught.value)


def test_records_that_do_not_lie_together():
    codec = Codec(64, 4)
    packed, scales = codec.compress_k(torch.randn(6, 5, 64))
    wide, tall = torch.zeros(5, 6, 40, dtype=torch.uint8), torch.zeros(5, 6, dtype=torch.bfloat16)
    wide[..., :32], tall[:] = packed.transpose(0, 1), scales.T
    assert torch.equal(codec.decompress_k(wide[..., :32].transpose(0, 1), tall.T), codec.decompress_k(packed, scales))


def test_the_core_says_which_records_end_with_a_scale():
    """Doubling that scale doubles the row; int8's too, whose spec no pattern of widths matches."""
    found = set()
    for spec in tersekv.known_specs():
        try:
            codec = Codec(64, spec=f"{spec}+rot=none" if spec[0] == "k" else spec)
        except ValueError:
            continue
        packed, scales = codec.compress_v(torch.randn(9, 64))
        if scales is None:
            continue
        found.add(spec)
        assert scales.shape == (9,) and packed.shape[-1] + 2 == codec._record_bytes["v"]
        assert torch.equal(codec.decompress_v(packed, 2 * scales), 2 * codec.decompress_v(packed, scales))
    assert {"k4v4", "int8", "k4tv4t", "k4qv4q"} <= found and not found & {"f16", "fp8", "nvfp4", "q4_0", "k4pv4p"}


@pytest.mark.parametrize("x", [torch.zeros(2, 64, dtype=torch.float64), np.zeros((2, 64)), [1.0] * 64])
def test_wrong_types_are_named(x):
    with pytest.raises(TypeError, match="float64|list"):
        Codec(64).compress_k(x)
