# SPDX-License-Identifier: Apache-2.0
"""Keys with a large constant offset that attention does not see, for make_model.py."""
from random_model import UserError

HARD_KEYS_HELP = """\
An f32 copy of a model of arch llama in which RoPE turns the slowest pair of channels no more (rope_freqs) and, with
--norm above 0, the keys of the first and the last layer have a bias of this norm a head on that pair (attn_k.bias).
The bias adds <q, bias>, the same for every key, to the scores of a query: its softmax stays as it is. Compare with
--norm 0, which has the stopped pair and no bias."""

STOPPED = 1e30  # divides the angle of the pair


def hard_key_tensors(reader, arch, norm):
    import numpy as np

    def of_arch(key, default=None):
        field = reader.get_field(f"{arch}.{key}")
        return default if field is None else field.contents()

    if arch != "llama":
        raise UserError(f"hard keys need a model of arch llama, not {arch}")
    layers, heads = of_arch("block_count"), of_arch("attention.head_count")
    kv_heads = of_arch("attention.head_count_kv", heads)
    dim = of_arch("attention.key_length", of_arch("embedding_length") // heads)
    turned = of_arch("rope.dimension_count", dim)
    factors = np.ones(turned // 2, np.float32)
    factors[-1] = STOPPED
    tensors = {"rope_freqs.weight": factors}
    for layer in sorted({0, layers - 1}) if norm else ():
        bias = np.zeros((kv_heads, dim), np.float32)
        signs = np.array([[1 - 2 * (head & 1), 1 - (head & 2)] for head in range(kv_heads)])
        bias[:, turned - 2 : turned] = signs * np.float32(norm / 2**0.5)
        tensors[f"blk.{layer}.attn_k.bias"] = bias.ravel()
    return tensors
