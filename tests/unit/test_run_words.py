"""What a run says at its end, what it says when it is interrupted, and what an old journal still says."""

import pytest

from kernelwright.cli.main import INTERRUPTED, _interrupted
from kernelwright.cli.optimize import end_to_end, left_out
from kernelwright.cli.screen import ExitCode
from kernelwright.core.account import Against
from kernelwright.core.events import BODY, ModelRanked, ModelVerified, RankedRegion, WinnerTried
from kernelwright.core.tree import fold
from kernelwright.report.usage import line

VERIFIED = ModelVerified(
    winners={"p": "c"}, ratio=1.1, ci_low=1.05, ci_high=1.15, eager_ratio=1.2, eager_ci_low=1.1,
    eager_ci_high=1.3, compiled_ratio=0.9, compiled_ci_low=0.85, compiled_ci_high=0.95, drift=1.01,
    fallbacks=0, shipped=True, reason="faster end to end", notes=("graph: x1.2",),
)  # fmt: skip


def region(name: str, gain: float, skipped: str = "", share: float = 0.1) -> RankedRegion:
    return RankedRegion(name=name, op="matmul", count=2, share=share, gain=gain, skipped=skipped)


def ranked(*regions: RankedRegion) -> ModelRanked:
    return ModelRanked(against=Against.COMPILED, total_us=100, eager_us=120, limit=2, regions=regions)


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
    ],
)
def test_an_interrupted_run_is_taken_up_in_the_home_it_was_given(
    words: list[str], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _interrupted(words)
    assert f"`{command}`" in " ".join(capsys.readouterr().err.split())


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
