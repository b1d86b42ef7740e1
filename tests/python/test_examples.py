# SPDX-License-Identifier: Apache-2.0
"""The programs of examples/python run, on the tiny model."""
import pathlib
import runpy
import sys

import pytest

from models import tokens

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "python"
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning", "ignore::FutureWarning")


def words(n, seed=1):
    return " ".join(f"w{i}" for i in tokens(1, n, seed)[0].tolist())


CASES = {
    "generate": (lambda folder, path: [folder, words(200)], ["bytes for ", " as float16"]),
    "shared_prefix": (lambda folder, path: [folder, path, words(5), words(7, 2)], [words(5), words(7, 2), "once"]),
    "byte_budget": (lambda folder, path: [folder, path, "2200000"], ["full: the KV budget of 2200000", "read "]),
    "choose_bits": (lambda folder, path: [folder, path.parent / "profile.tkvp"], ["balanced:", "'bits': 4.0"]),
    "codec": (lambda folder, path: [], ["8 bits:", "2 bits:"]),
    "compare": (lambda folder, path: [folder, path, "k8v8,k2v2"], ["k8v8", "k2v2", "perplexity"]),
}


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_example(name, folder, tmp_path, monkeypatch, capsys):
    text = tmp_path / "text"
    text.write_text(words(2500 if name == "byte_budget" else 400))
    arguments, expected = CASES[name]
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments(folder, text))])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert all(part in out for part in expected), out
    assert f"examples/python/{name}.py" in (EXAMPLES / f"{name}.py").read_text()  # its own usage line
