"""The knowledge base: questions find their cards, documents of a folder reach the brief, and nothing else does."""

from pathlib import Path

import pytest

from kernelwright.core.brief import Brief
from kernelwright.core.config import RunConfig
from kernelwright.core.diagnosis import Diagnosis, Evidence, Relation
from kernelwright.core.errors import BadInput, NotFound
from kernelwright.core.events import ProblemFound
from kernelwright.core.technique import Architecture, Bottleneck
from kernelwright.core.tree import Tree
from kernelwright.engine.knowing import knowledge_given, notes_for
from kernelwright.engine.run import Run
from kernelwright.engine.seeds import Seeds
from kernelwright.llm.facts import Length, facts_of
from kernelwright.store.fulltext import match_any, words_of
from kernelwright.store.knowledge import (
    Level,
    Question,
    card_texts,
    document_texts,
    matching_cards,
    note_texts,
    read_folder,
    search,
)
from kernelwright.store.playbook import read_playbook
from tests.unit.questions import ASKED, HELD_OUT

CARDS = read_playbook()
WRITTEN = {
    "constraints/rules.md": "# Rules\nNever call the vendor's library.",
    "guidance/widths.md": '+++\ntitle = "Widths"\nops = ["rmsnorm"]\n+++\nUse `zvload.q` for memory bandwidth.',
    "guidance/other.md": '+++\nops = ["softmax"]\n+++\n`zvexp` for memory bandwidth.',
    "hardware/chip.txt": "The Z9 moves 64 bytes by `zvload.q`; its memory bandwidth is low.",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in WRITTEN.items():
        path = tmp_path / "documents" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "documents"


def run_with(make, tmp_path: Path, *folders: Path) -> Run:
    tree = Tree()

    def record(bodies) -> None:
        for body in bodies:
            tree.apply(body)

    config = RunConfig(op="rmsnorm", knowledge=tuple(str(one) for one in folders))
    run = Run(config, make.device(), 1, tmp_path / "run", record, tree, print, Seeds(("cpp",), 1))
    record([ProblemFound(problem=make.problem())])
    record([knowledge_given(run, tmp_path)])
    return run


def waiting() -> Diagnosis:
    evidence = Evidence(metric="memory_pct", value=90, relation=Relation.AT_LEAST, threshold=60)
    return Diagnosis(
        category=Bottleneck.MEMORY_BANDWIDTH, severity=0.9, evidence=(evidence,), sentence="the bus is full"
    )


def found(question: str, first: int = 3) -> set[str]:
    return {card.name for card in matching_cards(CARDS, question)[:first]}


def test_of_twenty_questions_eighteen_find_their_card_among_the_first_three():
    missed = [question for question, right in ASKED.items() if not right & found(question)]
    assert len(ASKED) == 20
    assert all(right <= {card.name for card in CARDS} for right in (*ASKED.values(), *HELD_OUT.values()))
    assert len(missed) <= 2, missed


def test_a_question_without_a_telling_word_finds_nothing():
    assert matching_cards(CARDS, "how do I do it?") == []
    assert words_of("why is my GEMM so slow") == ["gemm", "matmul", "product"]
    assert match_any('"; DROP') == '"drop"'


def test_only_texts_for_the_op_language_and_hardware_may_answer():
    texts = [*card_texts(CARDS), *note_texts()]
    names = {one.name for one in search(texts, Question("matrix products", arch="x86_64", op="matmul"))}
    assert "register_tile" in names
    assert not names & {"hopper_wgmma", "cdna3_mfma", "ampere_mma"}
    assert all(not one.startswith(("hopper", "ampere", "ada", "blackwell", "cdna3#")) for one in names)


def test_every_family_of_hardware_has_a_note_with_its_numbers():
    about = {arch for one in note_texts() for arch in one.archs}
    assert about == {str(one) for one in Architecture}
    numbered = {one.archs[0] for one in note_texts() if one.name.endswith("#Numbers")}
    assert numbered == about
    assert all(one.level is Level.HARDWARE and len(one.text) < 2500 for one in note_texts())


def test_a_folder_is_read_with_its_levels_and_facets(folder: Path):
    texts = {one.name: one for one in document_texts(read_folder(folder))}
    assert texts.keys() == WRITTEN.keys()
    assert texts["constraints/rules.md"].level is Level.CONSTRAINTS
    assert (texts["guidance/widths.md"].title, texts["guidance/widths.md"].ops) == ("Widths", ("rmsnorm",))
    assert texts["hardware/chip.txt"].level is Level.HARDWARE


def test_what_cannot_be_read_is_named(folder: Path):
    with pytest.raises(NotFound, match="Knowledge folder"):
        read_folder(folder / "missing")
    (folder / "bad.md").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match="no UTF-8"):
        read_folder(folder)
    (folder / "bad.md").write_text("+++\nop = 3\n+++\nx")
    with pytest.raises(BadInput, match="'op' cannot stand in front"):
        document_texts(read_folder(folder))


def test_a_long_document_is_cut_at_its_headings(folder: Path):
    (folder / "long.md").write_text(
        "# Manual\n" + "".join(f"## Part {n}\n{'word ' * 400}\n" for n in range(3))
    )
    names = [one.name for one in document_texts(read_folder(folder)) if "long" in one.name]
    assert names == ["long.md#Part 0", "long.md#Part 1", "long.md#Part 2"]


def test_documents_that_match_the_diagnosis_reach_the_brief_and_the_prompt(
    make, tmp_path: Path, folder: Path
):
    run = run_with(make, tmp_path, folder)
    notes = notes_for(run, make.problem(), "cpp", [waiting()])
    names = [note.splitlines()[0] for note in notes]
    assert names[:3] == [
        "constraints, document constraints/rules.md",
        "guidance, document guidance/widths.md",
        "hardware, document hardware/chip.txt",
    ]
    assert all("note hopper#" in name for name in names[3:])
    brief = Brief(problem=make.problem(), parents=(), evaluations=(), notes=notes)
    assert "zvload.q" in facts_of(brief, Length.FULL)
    assert "zvload.q" not in facts_of(brief, Length.BARE)
    assert "zvexp" not in "".join(notes)


def test_a_run_quotes_documents_as_they_were_and_one_without_the_folder_none(
    make, tmp_path: Path, folder: Path
):
    run = run_with(make, tmp_path, folder)
    (folder / "hardware/chip.txt").unlink()
    assert "Z9" in "".join(notes_for(run, make.problem(), "cpp", [waiting()]))
    later = run_with(make, tmp_path, folder)
    assert "Z9" not in "".join(notes_for(later, make.problem(), "cpp", [waiting()]))
    without = run_with(make, tmp_path)
    assert "zvload" not in "".join(notes_for(without, make.problem(), "cpp", [waiting()]))


def test_of_ten_questions_the_index_was_not_made_with_nine_find_their_card():
    missed = [question for question, right in HELD_OUT.items() if not right & found(question)]
    assert len(HELD_OUT) == 10
    assert len(missed) <= 1, missed
