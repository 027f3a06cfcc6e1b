"""The playbook: every card is complete, every name on it is known, its code parses, and search finds what it should."""

import ast
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernelwright.cli.main import build_app
from kernelwright.core import plugins
from kernelwright.core.errors import BadInput
from kernelwright.core.plan_language import OPENING, parse_params, parse_plan
from kernelwright.core.technique import (
    HEADINGS,
    Architecture,
    Basis,
    Bottleneck,
    Language,
    Technique,
    Tier,
    Wanted,
    architecture_of,
    chosen,
)
from kernelwright.store.knowledge import matching_cards
from kernelwright.store.playbook import FIELDS, playbook_folder, read_card, read_playbook

CARDS = {card.name: card for card in read_playbook()}
OPS = set(plugins.names("ops"))
MOVES = {
    "cache_hints",
    "l2_swizzle",
    "loop_order",
    "multi_row_blocks",
    "non_temporal_stores",
    "online_softmax",
    "openmp_schedule",
    "persistent_grid",
    "pipeline_depth",
    "split_k",
    "tile_shapes",
    "two_pass",
    "unrolling",
    "vector_width",
} | set(plugins.names("moves"))
"""Mechanical rewrites the search offers or will offer."""
ASKED_FOR = {
    "power-of-two tiles": "power_of_two_tiles",
    "warps": "warps_from_elements",
    "stages": "pipeline_stages",
    "coalescing": "coalesced_access",
    "prefetch": "prefetch_next_tile",
    "L2 swizzle": "l2_swizzle",
    "shared-memory padding": "shared_memory_padding",
    "TF32": "tf32_where_allowed",
    "epilogue fusion": "epilogue_fusion",
    "loop-invariant hoisting": "loop_invariant_hoisting",
    "split-K": "split_k",
    "persistent kernels": "persistent_grid",
    "autotuning": "params_per_case",
    "warp specialisation": "warp_specialisation",
    "TMA": "tma_descriptors",
    "cp.async": "cp_async_pipeline",
    "multi-stage mbarrier rings": "mbarrier_ring",
    "inline PTX": "inline_ptx",
    "online softmax": "online_softmax",
    "Welford": "welford",
}
OTHER_WORDS = {"_mm512_load_ps", "big_index", "shfl_xor", "tensor_maps", "two_ctas"}
"""What stands in brackets and backquotes like a pointer to another card and is none."""
GOOD = """\
+++
title = "A title"
tier = 1
bottlenecks = ["compute"]
backends = ["triton"]
ops = "any"
archs = "any"
move = "none"
[gain]
low = 1.1
high = 1.5
basis = "expected"
source = "arithmetic of some kind"
+++
## What to do
Something.

## Example
```python
x = 1
## not a heading: code
```

## Traps
One.

## How to see that it worked
Look.
"""


def test_there_are_enough_cards_and_every_tier_language_and_architecture_has_some() -> None:
    assert len(CARDS) >= 48
    tiers = [card.tier for card in CARDS.values()]
    assert {tier: tiers.count(tier) >= 8 for tier in Tier} == dict.fromkeys(Tier, True)
    assert {name for card in CARDS.values() for name in card.backends} == set(Language)
    assert {name for card in CARDS.values() for name in card.archs} == set(Architecture)
    assert {name for card in CARDS.values() for name in card.bottlenecks} == set(Bottleneck)


@pytest.mark.parametrize("name", CARDS)
def test_a_card_is_complete_and_names_only_what_exists(name: str) -> None:
    card = CARDS[name]
    assert set(card.ops) <= OPS
    assert card.move is None or card.move in MOVES
    for heading in HEADINGS:
        assert len(card.section(heading)) >= 60, heading
    assert card.examples
    assert ("expected, not measured here" in card.gain.text) is (card.gain.basis is Basis.EXPECTED)


@pytest.mark.parametrize("name", CARDS)
def test_the_code_of_a_card_parses(name: str) -> None:
    for example in CARDS[name].examples:
        assert example.language in {"python", "cuda", "cpp"}
        if example.language == "python":
            ast.parse(example.code)
        if "def plan(" in example.code:
            parse_plan(example.code)
            assert parse_params(example.code)
        if example.case and example.language == "cuda":
            assert OPENING in example.code


def test_cards_point_only_at_cards_that_exist() -> None:
    pointed = {
        word for card in CARDS.values() for word in re.findall(r"\(`([a-z0-9_]+_[a-z0-9_]+)`\)", card.body)
    }
    assert len(pointed) > 20
    assert pointed - CARDS.keys() == OTHER_WORDS


def test_every_technique_asked_for_has_its_card_and_search_finds_it_among_the_first_three() -> None:
    cards = list(CARDS.values())
    found = {words: [card.name for card in matching_cards(cards, words)[:3]] for words in ASKED_FOR}
    missed = {words: names for words, names in found.items() if ASKED_FOR[words] not in names}
    assert missed == {}


def test_search_understands_a_symptom() -> None:
    hopper = [card for card in CARDS.values() if Wanted(arch=Architecture.HOPPER).admits(card)]
    assert "coalesced_access" in [
        card.name for card in matching_cards(hopper, "uncoalesced loads on Hopper")[:3]
    ]
    assert matching_cards(list(CARDS.values()), "xylophone") == []


def test_filters_keep_what_serves_everything_and_leave_out_what_does_not() -> None:
    wanted = Wanted(backend=Language.CPP, op="matmul", arch=Architecture.X86)
    names = {card.name for card in CARDS.values() if wanted.admits(card)}
    assert {"pack_panels", "params_per_case"} <= names
    assert not names & {"hopper_wgmma", "non_temporal_stores", "welford"}
    assert not Wanted(tier=Tier.COMPUTE).admits(CARDS["welford"])
    assert not Wanted(bottlenecks=(Bottleneck.SPILLS,)).admits(CARDS["welford"])


def test_an_architecture_gets_only_cards_in_languages_it_understands() -> None:
    for arch, strange in {
        Architecture.X86: {"multi_row_blocks", "split_rows"},
        Architecture.HOPPER: {"pack_panels", "parallel_grain"},
        Architecture.CDNA3: {"packs_per_thread", "cluster_reduction"},
    }.items():
        names = {card.name for card in chosen(CARDS.values(), Wanted(arch=arch))}
        assert names & {"online_softmax"}
        assert not names & strange


def test_cards_against_the_most_pressing_bottleneck_come_first() -> None:
    pressing = (Bottleneck.BANK_CONFLICTS, Bottleneck.SPILLS)
    found = chosen(CARDS.values(), Wanted(backend=Language.CUDA, bottlenecks=pressing))
    first = [Bottleneck.BANK_CONFLICTS in card.bottlenecks for card in found]
    assert first == sorted(first, reverse=True)
    assert (first[0], first[-1]) == (True, False)
    assert all(
        Bottleneck.SPILLS in card.bottlenecks
        for card in found
        if Bottleneck.BANK_CONFLICTS not in card.bottlenecks
    )


def test_a_device_finds_its_family() -> None:
    assert [architecture_of(name) for name in ("sm_90", "gfx942", "ada", "x86_64", "sm_75")] == [
        Architecture.HOPPER,
        Architecture.CDNA3,
        Architecture.ADA,
        Architecture.X86,
        None,
    ]


def card_of(tmp_path: Path, text: str) -> Technique:
    path = tmp_path / "some_card.md"
    path.write_text(text)
    return read_card(path, ["softmax"])


def test_a_good_file_becomes_a_card(tmp_path: Path) -> None:
    card = card_of(tmp_path, GOOD)
    assert (card.name, card.tier, card.ops, card.move) == ("some_card", Tier.BLOCK_SIZES, (), None)
    assert card.gain.text == "1.1 to 1.5x (expected, not measured here): arithmetic of some kind"
    assert card.section("Traps") == "One."
    assert card.examples[0].code == "x = 1\n## not a heading: code\n"


BROKEN = {
    "no front matter": (GOOD.replace("+++", "---"), "'front matter' is not between two lines of +++"),
    "not TOML": (GOOD.replace("tier = 1", "tier = = 1"), "'front matter' is not TOML"),
    "unknown field": (GOOD.replace("move =", "mode ="), "'mode' is not a field"),
    "unknown op": (GOOD.replace('ops = "any"', 'ops = ["softmux"]'), "'ops' names 'softmux'"),
    "empty list": (GOOD.replace('ops = "any"', "ops = []"), "'ops' is []"),
    "unknown bottleneck": (GOOD.replace('"compute"', '"tiredness"'), "'bottlenecks.0'"),
    "unknown backend": (GOOD.replace('["triton"]', '["fortran"]'), "'backends.0'"),
    "tier out of range": (GOOD.replace("tier = 1", "tier = 7"), "'tier'"),
    "gain upside down": (GOOD.replace("low = 1.1", "low = 2.1"), "low 2.1 exceeds high 1.5"),
    "section missing": (GOOD.replace("## Traps", "## Tricks"), "has the sections"),
    "section empty": (GOOD.replace("One.\n", ""), "'Traps' is empty"),
    "open code block": (GOOD.replace("## not a heading: code\n```", "y = 2"), "has the sections"),
} | {
    f"without {field}": (
        "\n".join(line for line in GOOD.splitlines() if not line.startswith(f"{field} =")),
        f"'{field}' is missing",
    )
    for field in FIELDS
    if field != "gain"
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_with_its_name_the_field_and_the_next_step(
    name: str, tmp_path: Path
) -> None:
    text, words = BROKEN[name]
    with pytest.raises(BadInput) as found:
        card_of(tmp_path, text)
    message = str(found.value)
    assert message.startswith("playbook/some_card.md: ")
    assert words in message
    assert message.rstrip().endswith(".")


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(build_app(), ["playbook", *words], standalone_mode=False)
    return int(done.return_value or 0), done.output


def test_the_verb_lists_by_tier_filters_shows_and_says_when_nothing_matches() -> None:
    code, listed = run()
    assert code == 0
    assert f"{len(CARDS)} cards" in listed
    assert listed.index("power_of_two_tiles") < listed.index("coalesced_access") < listed.index("welford")
    code, some = run("--tier", "6", "--op", "rope", "--json")
    assert {card["name"] for card in json.loads(some)["techniques"]} == {
        "rope_shared_tables",
        "rope_interleaved_pairs",
    }
    code, shown = run("split-k")
    assert code == 0
    assert "## Traps" in shown
    assert "- against: occupancy" in shown
    code, nothing = run("xylophone")
    assert (code, "no card matches" in nothing) == (1, True)


def test_the_verb_accepts_targets_and_refuses_unknown_names() -> None:
    _, hopper = run("--arch", "sm_90", "--bottleneck", "tensor-core idle", "--json")
    names = {card["name"] for card in json.loads(hopper)["techniques"]}
    assert "hopper_wgmma" in names
    assert "cdna3_mfma" not in names
    for option, value in (
        ("--tier", "7"),
        ("--backend", "cobol"),
        ("--op", "sofmax"),
        ("--arch", "vax"),
        ("--bottleneck", "x"),
    ):
        done = CliRunner().invoke(build_app(), ["playbook", option, value], standalone_mode=False)
        assert done.exception is not None
        assert value in str(done.exception)


def test_the_folder_holds_cards_and_nothing_else() -> None:
    assert {path.suffix for path in playbook_folder().iterdir()} == {".md"}
