"""Tools without the protocol: arguments are checked by name, files stay in the project, keys stay here."""

import json
import os
from pathlib import Path

import pytest
from pydantic import Field

from kernelwright.cli.mcp.server import TOOLS
from kernelwright.cli.mcp.tool import Arguments, Failure, Place, Tool, as_json, carried_out
from kernelwright.cli.screen import Answer
from kernelwright.core.errors import BadInput
from kernelwright.core.verdict import JUDGE_VERSION
from kernelwright.engine.disassembling import cpu_counts, functions_in
from kernelwright.engine.past_kernels import Search, past_kernels
from kernelwright.store.jobs import Job, is_alive, job_ids, locked, read_job, write_job
from kernelwright.store.journal import Journal
from tests.unit.report_runs import Telling

LISTING = """
Disassembly of section .text:

0000000000001080 <frame_dummy>:
    1080:	ret

0000000000001090 <helper>:
    1090:	vfmadd231ps %zmm1,%zmm2,%zmm3
    1096:	mov    0x8(%rsp),%rax
    109b:	ret

00000000000010a0 <kernel_fn>:
    10a0:	vmovups (%rdi),%ymm0
    10a4:	call   1090 <helper>
    10a9:	ret
"""


class Twice(Arguments):
    number: int = Field(ge=0)
    names: tuple[str, ...] = ()


class Doubled(Answer):
    value: int


def double(_: Place, wanted: Twice) -> Doubled:
    """Double it."""
    return Doubled(value=2 * wanted.number)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "Tool 'double', argument 'number': Field required. It takes: number, names."),
        ({"number": "4"}, "argument 'number': Input should be a valid integer; given was '4'."),
        ({"number": -1}, "argument 'number': Input should be greater than or equal to 0; given was '-1'."),
        ({"number": 1, "more": 2}, "argument 'more': Extra inputs are not permitted. It takes"),
        ({"number": 1, "names": ["a", 3]}, "argument 'names.1': Input should be a valid string"),
    ],
)
def test_a_malformed_call_names_the_argument_the_value_and_what_is_taken(given: dict, told: str) -> None:
    found = carried_out(Tool(double, Twice, Doubled), Place(Path(), Path()), given)
    assert isinstance(found, Failure)
    assert (found.error, told in found.message) == ("BadCall", True), found


def test_a_good_call_is_answered() -> None:
    tool = Tool(double, Twice, Doubled)
    assert carried_out(tool, Place(Path(), Path()), {"number": 21, "names": ["a"]}) == Doubled(value=42)
    assert (tool.name, tool.description) == ("double", "Double it.")


def test_every_tool_and_every_argument_says_what_it_is() -> None:
    for tool in TOOLS:
        assert tool.description.endswith("."), tool.name
        for name, field in tool.arguments.model_fields.items():
            assert field.description, f"{tool.name}.{name}"
        json.dumps(tool.answer.model_json_schema(mode="serialization"))


@pytest.mark.parametrize("name", ["../secret.py", "/etc/passwd", "link.py", "sub/../../secret.py"])
def test_a_file_outside_of_the_project_is_refused(tmp_path: Path, name: str) -> None:
    root = tmp_path / "project"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "secret.py").write_text("x")
    (root / "link.py").symlink_to(tmp_path / "secret.py")
    with pytest.raises(BadInput, match="lies outside of"):
        Place(tmp_path, root).file("file", name)


def test_a_model_of_the_project_is_named_by_its_whole_path(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("")
    place = Place(tmp_path, tmp_path)
    assert place.model("net.py:build") == f"{tmp_path / 'net.py'}:build"
    assert place.model(" net.py:build('a:b', n=2) ") == f"{tmp_path / 'net.py'}:build('a:b', n=2)"
    with pytest.raises(BadInput, match="is no file of"):
        place.model("nosuch.py:build")


def test_a_model_of_transformers_is_a_name_or_a_folder_of_the_project(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    place = Place(tmp_path, tmp_path)
    assert place.model("hf:owner/name") == "hf:owner/name"
    assert place.model("hf:llama(vocab_size=64)") == "hf:llama(vocab_size=64)"
    assert place.model("hf:./tiny(vocab_size=64)") == f"hf:{tmp_path / 'tiny'}(vocab_size=64)"


@pytest.mark.parametrize(
    "spec",
    [
        "{outside}/evil.py:build('a:b')",
        " {outside}/evil.py:build('x.py:y')",
        "../outside/evil.py:build('a:b')",
        "link.py:build('a:b')",
        "hf:{outside}",
        "hf:../outside",
        "hf:link",
        "hf:/no/such/place",
    ],
)
def test_no_way_of_writing_a_model_leads_out_of_the_project(tmp_path: Path, spec: str) -> None:
    root, outside = tmp_path / "project", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "evil.py").write_text("")
    (root / "link.py").symlink_to(outside / "evil.py")
    (root / "link").symlink_to(outside)
    with pytest.raises(BadInput, match="lies outside of"):
        Place(tmp_path, root, packages=True).model(spec.format(outside=outside))


def test_a_package_is_refused_unless_the_operator_allows_it_and_ours_and_pythons_are_always(
    tmp_path: Path,
) -> None:
    spec = "torchvision.models:resnet18(num_classes=10)"
    with pytest.raises(BadInput, match=r"'torchvision\.models' is a package.* --allow-packages"):
        Place(tmp_path, tmp_path).model(spec)
    assert Place(tmp_path, tmp_path, packages=True).model(spec) == spec
    for never in ("os:system('true')", "os.path:exists('x')", "kernelwright.model.saved:build('x')"):
        with pytest.raises(BadInput, match="holds no models"):
            Place(tmp_path, tmp_path, packages=True).model(never)


def test_the_projects_own_settings_lead_a_run_no_further_than_a_call_does(tmp_path: Path) -> None:
    root, outside = tmp_path / "project", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (start,) = (one for one in TOOLS if one.name == "start_run")
    (root / "kernelwright.toml").write_text(f'knowledge = ["{outside}"]\n')
    # An op that is none: were the folder not refused, nothing would be started all the same.
    found = carried_out(start, Place(tmp_path / "home", root), {"op": "no_such_op"})
    assert isinstance(found, Failure)
    assert f"kernelwright.toml: '{outside}' lies outside of" in found.message
    assert not (tmp_path / "home").exists()


def test_only_tools_that_start_nothing_say_that_they_only_read() -> None:
    starting = {tool.name for tool in TOOLS if not tool.is_reading}
    assert starting == {
        *("start_run", "resume_run", "stop_run"),
        *("judge_candidate", "submit", "profile"),
    }


def test_no_key_of_the_environment_is_in_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOUSE_API_KEY", "opensesame-please")
    told = Failure(error="X", message="it said opensesame-please and sk-ant-abcdefghijklmnop0123")
    assert as_json(told) == {"error": "X", "message": "it said <secret> and <secret>"}


def test_the_lock_of_a_job_tells_whether_its_process_lives(tmp_path: Path) -> None:
    assert (read_job(tmp_path, "one"), is_alive(tmp_path, "one")) == (None, False)
    lock = locked(tmp_path, "one")
    assert lock is not None
    write_job(tmp_path, Job(run_id="one", pid=7, doing="judging"))
    assert (is_alive(tmp_path, "one"), locked(tmp_path, "one")) == (True, None)
    os.close(lock)
    assert not is_alive(tmp_path, "one")
    assert (read_job(tmp_path, "one"), job_ids(tmp_path)) == (
        Job(run_id="one", pid=7, doing="judging"),
        ["one"],
    )


def test_a_listing_begins_with_the_kernel_and_leaves_out_the_runtime() -> None:
    parts = functions_in(LISTING)
    assert list(parts) == ["kernel_fn", "helper"]
    assert cpu_counts(parts["helper"]) == {
        "instructions": 3,
        "fused_multiply_add": 1,
        "stack_accesses": 1,
        "vector_512": 1,
    }
    assert cpu_counts(parts["kernel_fn"]) == {"instructions": 3, "calls": 1, "vector_256": 1}


def test_a_question_in_plain_words_finds_its_card_among_the_first_three(tmp_path: Path) -> None:
    (tool,) = (one for one in TOOLS if one.name == "playbook_search")
    place = Place(tmp_path, tmp_path)
    found = tool.call(place, {"words": "uncoalesced loads on Hopper", "arch": "sm_90"})
    assert len(found.entries) == 3
    assert "coalesced_access" in [one.name for one in found.entries]
    (card,) = tool.call(place, {"words": "online softmax"}).entries
    assert (card.name, card.source, "## " in card.text) == ("online_softmax", "card", True)


def test_past_kernels_are_found_by_construct_and_speed(make, tmp_path: Path) -> None:
    run = Telling(make)
    run.started().found()
    base = run.baseline(time_us=100.0)
    for name, time_us in (("fused", 50.0), ("plain", 80.0), ("fused slow", 200.0)):
        own = make.candidate(f"int kernel_fn();\n// {name} loop")
        run.compared(run.verdict(own, time_us), base, own, (100.0, time_us), kept=time_us < 100)
    for number in range(2):  # the same run twice: every kernel is found once
        folder = tmp_path / "runs" / f"20260102-03040{number}-aaaaaa"
        folder.mkdir(parents=True)
        with Journal.create(folder, folder.name) as journal:
            journal.append([event.body for event in run.events])
    (tmp_path / "runs" / "20260102-030409-aaaaaa").mkdir()
    found, unread = past_kernels(tmp_path, Search(op="rmsnorm", constructs=("FUSED", "loop")))
    assert [(one.speed, one.kept, one.lines) for one in found] == [
        (2.0, True, ("2: // fused loop",)),
        (0.5, False, ("2: // fused slow loop",)),
    ]
    assert ["20260102-030409-aaaaaa" in one for one in unread] == [True]
    assert [one.speed for one in past_kernels(tmp_path, Search(min_speed=1.1))[0]] == [2.0, 1.25]
    assert past_kernels(tmp_path, Search(op="softmax"))[0] == []


def test_past_kernels_of_retired_rules_come_after_all_others(make, tmp_path: Path) -> None:
    for number, (version, time_us) in enumerate((("8", 10.0), (JUDGE_VERSION, 50.0), (JUDGE_VERSION, 80.0))):
        run = Telling(make)
        run.started().found()
        run.baseline(time_us=100.0)
        run.verdict(make.candidate(f"int kernel_fn(); // {number}"), time_us, judge_version=version)
        folder = tmp_path / "runs" / f"20260102-03040{number}-aaaaaa"
        folder.mkdir(parents=True)
        with Journal.create(folder, folder.name) as journal:
            journal.append([event.body for event in run.events])
    found, _ = past_kernels(tmp_path, Search())
    assert [(one.judge_version, one.speed) for one in found] == [
        (JUDGE_VERSION, 2.0),
        (JUDGE_VERSION, 1.25),
        ("8", 10.0),
    ]
