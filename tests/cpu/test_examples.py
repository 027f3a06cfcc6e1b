"""Every example runs as a script and says something; the models among them load, run and compute what they claim."""

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelwright.model.fit import check
from kernelwright.model.load import load

EXAMPLES = Path(__file__).parents[2] / "examples"
MODELS = EXAMPLES / "models"


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(MODELS / f"{name}.py"))


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: path.stem)
def test_the_example_runs(path: Path) -> None:
    assert "def main()" in path.read_text()
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, env=environment, check=False
    )
    assert (done.returncode, done.stdout.strip() != "") == (0, True), done.stderr


@pytest.mark.parametrize(
    ("name", "factory", "sets"),
    [
        ("llama", "build", {"input": 1.0}),
        ("llama", "build_decode", {"decode": 32 / 33, "prefill": 1 / 33}),
        ("gpt2", "build", {"batch1": 0.75, "batch4": 0.25}),
        ("bert", "build", {"input": 1.0}),
        ("recommender", "build", {"batch256": 0.75, "batch32": 0.25}),
        ("template", "build", {"single": 0.9, "batch64": 0.1}),
    ],
)
def test_the_model_loads_with_its_sets_and_runs_on_each(
    name: str, factory: str, sets: dict[str, float]
) -> None:
    loaded = load(f"{MODELS / name}.py:{factory}")
    assert {one.name: one.weight for one in loaded.sets} == pytest.approx(sets)
    check(loaded)
    for one in loaded.sets:
        first, again, other = (one.make(seed).tensors() for seed in (1, 1, 2))
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
        assert [tensor.shape for tensor in first] == [tensor.shape for tensor in other]


@pytest.mark.parametrize(
    ("name", "factory", "parameters"),
    [
        ("llama", "build_large", 8.03e9),
        ("llama", "build_large_decode", 8.03e9),
        ("gpt2", "build_large", 1.56e9),
        ("bert", "build_large", 0.335e9),
        ("recommender", "build_large", 3.63e9),
    ],
)
def test_the_large_size_is_what_it_says_and_takes_its_inputs(
    name: str, factory: str, parameters: float
) -> None:
    namespace = example(name)
    model = namespace[factory](device="meta")
    assert sum(one.numel() for one in model.parameters()) == pytest.approx(parameters, rel=0.01)
    assert {one.dtype for one in model.parameters()} == {torch.bfloat16}
    made = namespace[f"sample_inputs{factory.removeprefix('build')}"](0)
    made = (
        made if isinstance(made, list) else [{"kwargs": made} if isinstance(made, dict) else {"args": made}]
    )
    for item in made:
        args = [value.to("meta") for value in item.get("args", ())]
        out = model(*args, **{key: value.to("meta") for key, value in item.get("kwargs", {}).items()})
        out = out[0] if isinstance(out, tuple) else out
        assert out.dtype == torch.bfloat16


def test_the_cache_gives_the_same_logits_as_the_whole_prompt() -> None:
    namespace = example("llama")
    whole, cached = namespace["build"](), namespace["build_decode"]()
    tokens = torch.randint(0, 2048, (1, 40), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        expected = whole(tokens)
        prompt = cached(tokens[:, :37], torch.tensor(0))
        steps = [cached(tokens[:, place : place + 1], torch.tensor(place)) for place in range(37, 40)]
    torch.testing.assert_close(prompt, expected[:, 36:37])
    torch.testing.assert_close(torch.cat(steps, dim=1), expected[:, 37:])


def test_a_jagged_history_is_cut_to_its_newest_entries() -> None:
    values, offsets = torch.arange(9), torch.tensor([0, 5, 5, 6, 9])
    rows, exists = example("recommender")["newest"](values, offsets, 3)
    found = [row[keep].tolist() for row, keep in zip(rows, exists, strict=True)]
    assert found == [[2, 3, 4], [], [5], [6, 7, 8]]


def test_the_factorisation_machine_sums_over_all_pairs() -> None:
    features = torch.randn(3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pairs = [features[:, i] * features[:, j] for i in range(5) for j in range(i)]
    torch.testing.assert_close(example("recommender")["pairwise"](features), torch.stack(pairs).sum(0))


def test_hashing_spreads_ids_of_any_size_evenly() -> None:
    table = example("recommender")["HashedEmbedding"](64, 1, salt=7)
    table.table.weight.data = torch.arange(64.0).unsqueeze(1) + 1
    hits = torch.zeros(64)
    rows = table(torch.arange(1 << 34, (1 << 34) + 6400)).abs().long().flatten() - 1
    hits.index_add_(0, rows, torch.ones(len(rows)))
    assert (hits.min() > 60, hits.max() < 150) == (True, True)


def test_padding_changes_nothing_for_the_tokens_that_count() -> None:
    model, inputs = example("bert")["build"](), example("bert")["sample_inputs"](0)
    seen = int(inputs["attention_mask"][0].sum())
    changed = dict(inputs, input_ids=inputs["input_ids"].clone())
    changed["input_ids"][0, seen:] = 0
    with torch.inference_mode():
        (before, _), (after, _) = model(**inputs), model(**changed)
    assert 64 <= seen < 128
    torch.testing.assert_close(before[0, :seen], after[0, :seen])
    assert not torch.allclose(before[0, seen:], after[0, seen:])
