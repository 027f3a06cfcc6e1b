"""What a run says at its end, what it says when it is interrupted, and what an old journal still says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright.cli.hints import home_words, named_home, pasteable
from kernelwright.cli.main import INTERRUPTED, _interrupted, build_app
from kernelwright.cli.optimize import end_to_end, left_out, told
from kernelwright.cli.screen import ExitCode
from kernelwright.core.account import Against
from kernelwright.core.events import BODY, ModelRanked, ModelVerified, RankedRegion, WinnerTried
from kernelwright.core.tree import fold
from kernelwright.report.chronicle import without_times
from kernelwright.report.facts import Around, facts
from kernelwright.report.usage import line
from kernelwright.store.journal import Journal
from tests.unit.report_runs import Telling, shipped_run

VERIFIED = ModelVerified(
    winners={"p": "c"}, ratio=1.1, ci_low=1.05, ci_high=1.15, eager_ratio=1.2, eager_ci_low=1.1,
    eager_ci_high=1.3, compiled_ratio=0.9, compiled_ci_low=0.85, compiled_ci_high=0.95, drift=1.01,
    fallbacks=0, shipped=True, reason="faster end to end", notes=("graph: x1.2",),
)  # fmt: skip


def region(name: str, gain: float, skipped: str = "", share: float = 0.1) -> RankedRegion:
    return RankedRegion(name=name, op="matmul", count=2, share=share, gain=gain, skipped=skipped)


def ranked(*regions: RankedRegion) -> ModelRanked:
    return ModelRanked(against=Against.COMPILED, total_us=100, eager_us=120, limit=2, regions=regions)


def won_alone(make) -> Telling:
    """Return a run of a kernel by itself that saves 40 us a call after 3 s of search."""
    run = Telling(make, model=None).started().found()
    run.challenger(run.baseline(), (100.0, 60.0))
    return run.ended()


def won_and_left_out(make) -> Telling:
    """Return a run whose winner does not pay in the model."""
    run = Telling(make).started().ranked().found()
    return run.verified(run.challenger(run.baseline(), (100.0, 50.0)), shipped=False).ended()


def test_the_end_is_told_against_all_three_with_intervals_even_where_torch_compile_wins() -> None:
    first, second, note, last = end_to_end(VERIFIED)
    assert first == (
        "end to end  x1.100 [1.050, 1.150] over the same graph without the winners, "
        "x1.200 [1.100, 1.300] over eager, x0.900 [0.850, 0.950] over torch.compile"
    )
    assert second == "  error against float64: 1.01 times the framework's own; 0 fallbacks"
    assert (note, last) == ("  graph: x1.2", "  shipped: faster end to end")
    assert "torch.compile" not in end_to_end(VERIFIED.model_copy(update={"compiled_ratio": None}))[0]


def test_what_is_left_out_is_named_by_its_gain_and_the_rest_is_summed_up() -> None:
    regions = [region(f"r{place}", 1.2, "no author for it yet") for place in range(6)]
    at_floor = [region("f", 1.0, "within 3 % of its floor", share=0.25)]
    assert left_out(ranked(region("worked on", 1.5), *regions, *at_floor)) == [
        *(f"left out: r{place}  x2, would gain x1.200: no author for it yet" for place in range(4)),
        "left out: 2 more; the journal lists them",
        "25.0 % of the time is in regions with nothing left to win",
    ]
    assert left_out(ranked(region("worked on", 1.5))) == []


def test_the_line_that_uses_the_kernels_says_who_runs_the_rest() -> None:
    assert line("k") == 'model = kernelwright.apply(model, "k")'
    assert line("k", "inductor") == 'model = kernelwright.apply(model, "k", rest="inductor")'
    assert line("k", launch="graph") == 'model = kernelwright.apply(model, "k", launch="graph")'


@pytest.mark.parametrize(
    ("told_run", "after"),
    [
        (shipped_run, "12\u00a0000 calls of the model"),
        (won_alone, "75\u00a0000 calls of the kernel"),
        (won_and_left_out, None),
    ],
)
def test_the_end_says_beside_a_gain_after_how_many_calls_the_search_has_paid_for_itself(
    make, tmp_path: Path, capsys: pytest.CaptureFixture[str], told_run, after: str | None
) -> None:
    events = told_run(make).events
    now = [events[0].at]
    with Journal.create(tmp_path / "run", "run", lambda: now[0]) as journal:
        for event in events:
            now[0] = event.at
            journal.append([event.body])
    told(tmp_path / "run", None, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    sentence = f"  the search has paid for itself after {after}"
    assert [line for line in lines if "paid for itself" in line] == ([sentence] if after else [])
    assert (tmp_path / "run" / "report.html").is_file()
    told(tmp_path / "run", None, as_json=True)
    (row,) = json.loads(capsys.readouterr().out)["kernels"]
    assert (row["calls_to_pay"] is not None) == (after is not None)


@pytest.mark.parametrize(("mode", "launch"), [("plain", ""), ("graph", ', launch="graph"')])
def test_kernels_that_pay_under_a_cuda_graph_alone_are_put_in_so(make, mode: str, launch: str) -> None:
    bodies = [event.body for event in shipped_run(make).events]
    tree = fold(
        [
            body.model_copy(update={"mode": mode}) if isinstance(body, ModelVerified) else body
            for body in bodies
        ]
    )
    found = facts(without_times(tree), Around("run", "kernels"))
    assert found.use.endswith(f'"kernels"{launch})')


@pytest.mark.parametrize("verb", ["optimize", "judge", "profile", "verify"])
def test_an_interrupted_verb_says_what_is_left_and_what_comes_next(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _interrupted([verb, "m.py:build"]) == ExitCode.INTERRUPTED
    assert capsys.readouterr().err.split() == INTERRUPTED[verb].split()
    assert len(INTERRUPTED[verb].split("; ")) == 2


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["optimize", "m.py:build", "--home", "/a home"], "kernelwright resume last --home '/a home'"),
        (["optimize", "--home=h", "--op", "rope"], "kernelwright resume last --home h"),
        (["--debug", "resume", "--home", "h", "2026-01", "--json"], "kernelwright resume 2026-01 --home h"),
        (["rejudge", "2026-01", "--home", "h"], "kernelwright resume last --home h"),
        (["rejudge", "./theirs", "--trust", "--home", "h"], "kernelwright resume last --home h"),
        (["resume", "--trust", "./theirs"], "kernelwright resume ./theirs --trust"),
    ],
)
def test_an_interrupted_run_is_taken_up_in_the_home_it_was_given(
    words: list[str], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _interrupted(words)
    assert f"`{command}`" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("`kernelwright show 2026-01` says more", "`kernelwright show 2026-01 --home '/a home'` says more"),
        ("`kernelwright journal verify R` names", "`kernelwright journal verify R --home '/a home'` names"),
        ("run `kernelwright doctor --calibrate`.", "run `kernelwright doctor --calibrate --home '/a home'`."),
        ("`kernelwright ops` lists them", "`kernelwright ops` lists them"),
        ("`kernelwright resume R --home h` goes on", "`kernelwright resume R --home h` goes on"),
        ("a `kernel_fn` and no command", "a `kernel_fn` and no command"),
    ],
)
def test_a_command_in_an_error_names_the_home_that_was_named(line: str, told: str) -> None:
    assert pasteable(line, named_home(["apply", "R", "--home", "/a home"]), build_app()) == told
    assert pasteable(line, named_home(["apply", "R"]), build_app()) == line


def test_a_home_is_named_unless_it_is_the_one_that_is_meant_anyway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELWRIGHT_HOME", str(tmp_path / "usual"))
    assert home_words(tmp_path / "usual") == ""
    assert home_words(tmp_path / "an other") == f" --home '{tmp_path / 'an other'}'"


def test_an_error_of_the_command_line_can_be_pasted(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kernelwright", "show", "last", "--home", str(tmp_path / "a home")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.MISTAKE
    assert f"Start one with `kernelwright optimize --home '{tmp_path / 'a home'}'`." in done.stderr


def test_the_tree_holds_the_ranking_and_what_came_of_every_winner() -> None:
    def tried(problem: str, kept: bool) -> WinnerTried:
        return WinnerTried(
            problem_hash=problem,
            candidate_hash="c",
            kept=kept,
            ratio=1.1,
            ci_low=1,
            ci_high=1.2,
            drift=1,
            reason="r",
        )

    ranking = ranked(region("a", 1.1))
    tree = fold([ranking, tried("p", True), tried("q", True), tried("p", False), VERIFIED])
    assert (tree.ranked, tree.verified) == (ranking, VERIFIED)
    assert [(key, one.kept) for key, one in tree.tried.items()] == [("q", True), ("p", False)]


def test_a_verification_written_before_there_was_torch_compile_in_it_still_loads() -> None:
    old = (
        '{"kind":"model_verified","winners":{"p":"c"},"ratio":1.1,"ci_low":1.0,"ci_high":1.2,"eager_ratio":1.1,'
        '"eager_ci_low":1.0,"eager_ci_high":1.2,"drift":1.0,"fallbacks":0,"shipped":true,"reason":"r"}'
    )
    found = BODY.validate_json(old)
    assert isinstance(found, ModelVerified)
    assert (found.compiled_ratio, found.mode, found.notes) == (None, "plain", ())
