# SPDX-License-Identifier: Apache-2.0
"""What the checks of cuda_check.py share."""
import torch
from transformers import LlamaConfig, LlamaForCausalLM

DEVICE = "cuda"
NO_STATS = "+mean=off+scale=off"  # rows of a batch are then coded as they would be alone
CHECKS, NUMBERS = [], {}


def check(function):
    CHECKS.append(function)
    return function


def tiny(head_dim=64, dtype=torch.float32, layers=3, seed=0):
    """Weights small enough that rounding is not blown up: with 0.15 a row of a batch and the row alone differ by 2e-3 on
    the CPU too."""
    torch.manual_seed(seed)
    config = LlamaConfig(vocab_size=199, hidden_size=256, intermediate_size=256, num_hidden_layers=layers,
                         num_attention_heads=8, num_key_value_heads=2, head_dim=head_dim, max_position_embeddings=8192,
                         initializer_range=0.05, tie_word_embeddings=False, eos_token_id=None)
    return LlamaForCausalLM(config).to(DEVICE, dtype).eval()


def ids_of(batch, n, seed=1):
    return torch.randint(3, 199, (batch, n), generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@torch.no_grad()
def forced(model, cache, ids, prompt, mask=None):
    """Logits of every slot from prompt - 1 on, fed one by one after the prompt."""
    def run(low, high):
        given = {} if mask is None else {"attention_mask": mask[:, :high],
                                         "position_ids": (mask.cumsum(1) - 1).clamp_min(0)[:, low:high]}
        return model(input_ids=ids[:, low:high], past_key_values=cache, use_cache=True, **given).logits[:, -1]
    out = [run(0, prompt)]
    out += [run(at, at + 1) for at in range(prompt, ids.shape[1])]
    return torch.stack(out, dim=1).float()


def kl(want, got):
    want, got = want.double().log_softmax(-1), got.double().log_softmax(-1)
    return (want.exp() * (want - got)).sum(-1)


def close(name, got, want, limit):
    worst = ((got - want).abs().max() / want.abs().max()).item()
    NUMBERS[name] = worst
    assert worst < limit and worst == worst, f"{name}: {worst:.2e}, the limit is {limit:.0e}"
