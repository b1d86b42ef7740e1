#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The codec alone, under attention of your own: error and bytes by width. Needs no model.

    examples/python/codec.py
"""
import torch

from tersekv import Codec

torch.manual_seed(0)
offsets = 5 * torch.randn(64)
keys, values = torch.randn(1, 2, 1000, 64) + offsets, torch.randn(1, 2, 1000, 64)
query = torch.randn(1, 8, 1, 64)
attend = torch.nn.functional.scaled_dot_product_attention
exact = attend(query, keys, values, enable_gqa=True)
for bits in (8, 4, 3, 2):
    codec = Codec(head_dim=64, bits=bits).fit_k(keys[:, :, :128]).fit_v(values[:, :, :128])
    packed_k, packed_v = codec.compress_k(keys), codec.compress_v(values)
    out = attend(query, codec.decompress_k(*packed_k), codec.decompress_v(*packed_v), enable_gqa=True)
    error = float((out - exact).norm() / exact.norm())
    print(f"{bits} bits: {codec.bytes_per_token} bytes a token and head, {codec.ratio:.2f}x smaller, error {error:.4f}")
