# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

import tersekv


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny models gain nothing from more, and on a busy machine threads that wait for each other take long. Tests of
    threads set their own number."""
    torch.set_num_threads(1)
    tersekv.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The tiny Llama with a tokenizer of words, as a folder that Transformers loads."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from models import make
    from transformers import PreTrainedTokenizerFast
    path = tmp_path_factory.mktemp("model")
    make("llama").save_pretrained(path)
    words = {f"w{i}": i for i in range(199)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w1"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w1", eos_token="w2", pad_token="w0") \
        .save_pretrained(path)
    return path
