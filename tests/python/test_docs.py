# SPDX-License-Identifier: Apache-2.0
"""The blocks of docs/python.md run, one after another, with a tiny model."""
import pathlib
import re

import pytest
import torch

import tersekv
from models import make, tokens
from tersekv import TerseCache

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "python.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)


class Batch(dict):
    __getattr__ = dict.__getitem__


class Tokenizer:
    """Letters as tokens, as the calls of the page need it."""
    padding_side = "right"

    def __call__(self, text, return_tensors, padding=False):
        texts = [text] if isinstance(text, str) else text
        rows = [[3 + ord(c) % 190 for c in t] for t in texts]
        width = max(map(len, rows))
        assert padding or all(len(row) == width for row in rows)
        assert not padding or self.padding_side == "left"
        return Batch(input_ids=torch.tensor([[0] * (width - len(row)) + row for row in rows]),
                     attention_mask=torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows]))

    def decode(self, ids, skip_special_tokens=True):
        return " ".join(map(str, ids.tolist()))


def test_every_spec_and_name_of_the_page_is_known():
    """Also those of the tables for people who come from other packages."""
    text = PAGE.read_text()
    specs = {spec for spec in re.findall(r'kv="([^"]+)"', text) if "profile" not in spec}
    specs |= {"k4v4" + option for option in re.findall(r"`(\+[a-z]+=[a-z0-9]+)`", text)}
    assert len(specs) > 12
    for spec in specs - {"f16", "f32"}:
        TerseCache(kv=spec)
    for name in set(re.findall(r"from tersekv import ([A-Za-z_, ]+)", text)):
        assert all(hasattr(tersekv, part) for part in name.split(", "))
    engine = tersekv.TurboQuantEngine(head_dim=64, total_bits=4)
    for name in ("generate", "compress_kv_cache", "build_cache", "compression_stats", "auto_tune", "compress_kv_3bit"):
        assert callable(getattr(engine, name)) and f"`engine.{name}(" in text


@pytest.mark.filterwarnings("error::RuntimeWarning", "ignore::FutureWarning")
def test_every_block_runs(tmp_path, capsys):
    assert len(BLOCKS) >= 5
    scope = {"model": make("llama"), "tokenizer": Tokenizer()}
    with torch.no_grad():
        for block in BLOCKS:
            exec(compile(block.replace("/tmp/my-model.tersekv", str(tmp_path / "m.tersekv")), str(PAGE), "exec"), scope)
    out = capsys.readouterr().out
    assert "bytes," in out and "balanced" in out and "cosine" not in out
    assert scope["result"]["tokens"] and scope["codec"].ratio > 3
    assert len(scope["ids"][0]) > 20 and tokens(1, 3).shape == (1, 3)
