"""`results.tsv`: one line per experiment, numbers only where the judge certified them."""

import pytest

from kernelwright.core.candidate import Author
from kernelwright.core.events import CandidateProposed, Compared, Decided, Evaluated, ProblemFound
from kernelwright.core.tree import fold
from kernelwright.core.verdict import Profile, Stage
from kernelwright.engine import gate
from kernelwright.report.results import COLUMNS, results_tsv


def table(bodies) -> list[dict[str, str]]:
    text = results_tsv(fold(bodies))
    assert text.endswith("\n")
    header, *rows = text[:-1].split("\n")
    assert header.split("\t") == list(COLUMNS)
    assert all(len(row.split("\t")) == len(COLUMNS) for row in rows)
    return [dict(zip(COLUMNS, row.split("\t"), strict=True)) for row in rows]


@pytest.fixture
def bench(make):
    """Return a problem of two cases, one weighing three times the other, and its baseline."""
    problem = make.problem(cases=(make.case(rows=8, weight=3.0), make.case(rows=80, weight=1.0)))
    return problem, make.baseline()


def judged(problem, candidate, verdict):
    return [
        CandidateProposed(problem_hash=problem.hash, candidate=candidate),
        Evaluated(evaluation=verdict),
    ]


def decided(decision):
    return Decided(decision=decision)


def test_empty_run_is_a_header_alone():
    assert results_tsv(fold([])) == "\t".join(COLUMNS) + "\n"


def test_run_gives_one_row_per_experiment_with_its_tag_and_verdict(make, bench):
    problem, baseline = bench
    faster, wrong, waiting = make.candidate("faster"), make.candidate("wrong"), make.candidate("waiting")
    verdicts = [
        make.evaluation(baseline, problem),
        make.evaluation(faster, problem),
        make.evaluation(wrong, problem, failed=Stage.SMOKE),
    ]
    found = make.comparison(baseline, faster, problem)
    rows = table(
        [
            ProblemFound(problem=problem),
            *judged(problem, baseline, verdicts[0]),
            decided(gate.first_of_problem(verdicts[0])),
            *judged(problem, faster, verdicts[1]),
            Compared(comparison=found),
            decided(gate.decide(verdicts[1], found)),
            *judged(problem, wrong, verdicts[2]),
            decided(gate.rejected(verdicts[2])),
            CandidateProposed(problem_hash=problem.hash, candidate=waiting),
        ]
    )
    assert [row["experiment"] for row in rows] == ["0", "1", "2", "3"]
    assert [row["tag"] for row in rows] == ["keep", "keep", "revert", "pending"]
    assert [row["correctness"] for row in rows] == ["accepted", "accepted", "wrong", "pending"]
    assert {row["kernel_type"] for row in rows} == {"rmsnorm"}
    assert [row["speedup_vs_baseline"] for row in rows] == ["", "1.2500", "", ""]
    assert (rows[1]["ci_low"], rows[1]["ci_high"]) == ("1.2000", "1.3000")
    assert [bool(row["latency_us"]) for row in rows] == [True, True, False, False]


def test_latency_and_rates_are_weighted_over_the_cases(make, bench):
    problem, baseline = bench
    verdict = make.evaluation(baseline, problem, timing=make.timing(problem, [10.0, 50.0]))
    (row,) = table([ProblemFound(problem=problem), *judged(problem, baseline, verdict)])
    # 8 x 64 and 80 x 64 in fp16: 4 FLOPs per element; x and out moved once, the weight once.
    flops = (3 * 4 * 8 * 64 + 4 * 80 * 64) / 4
    moved = (3 * 2 * (2 * 8 * 64 + 64) + 2 * (2 * 80 * 64 + 64)) / 4
    assert row["latency_us"] == "20.000"
    assert row["throughput_tflops"] == f"{flops / 20e-6 / 1e12:.6f}"
    assert row["bandwidth_gb_s"] == f"{moved / 20e-6 / 1e9:.3f}"


def test_share_of_the_floor_is_the_same_on_every_case_whatever_the_weights(make, bench):
    problem, baseline = bench
    verdict = make.evaluation(baseline, problem, timing=make.timing(problem, [10.0, 100.0], [5.0, 50.0]))
    (row,) = table([ProblemFound(problem=problem), *judged(problem, baseline, verdict)])
    assert row["pct_floor"] == "50.0"


def test_share_of_the_floor_is_empty_if_one_floor_is_unknown(make, bench):
    problem, baseline = bench
    verdict = make.evaluation(baseline, problem, timing=make.timing(problem, [10.0, 100.0], [5.0, None]))
    (row,) = table([ProblemFound(problem=problem), *judged(problem, baseline, verdict)])
    assert row["pct_floor"] == ""


def test_what_is_not_known_is_an_empty_field_and_never_a_zero(make, bench):
    problem, baseline = bench
    quick = make.evaluation(baseline, problem, profile=Profile.QUICK)
    (row,) = table([ProblemFound(problem=problem), *judged(problem, baseline, quick)])
    known = {"experiment", "tag", "kernel_type", "correctness", "description", "problem", "author", "backend"}
    unknown = known ^ set(COLUMNS)
    assert {row[column] for column in unknown} == {""}


def test_gain_over_another_incumbent_is_no_speedup_over_the_baseline(make, bench):
    problem, baseline = bench
    first, second = make.candidate("first"), make.candidate("second")
    rows = table(
        [
            ProblemFound(problem=problem),
            *judged(problem, baseline, make.evaluation(baseline, problem)),
            *judged(problem, first, make.evaluation(first, problem)),
            Compared(comparison=make.comparison(baseline, first, problem)),
            *judged(problem, second, make.evaluation(second, problem)),
            Compared(comparison=make.comparison(first, second, problem, ratio=1.21)),
        ]
    )
    assert [row["speedup_vs_baseline"] for row in rows] == ["", "1.2500", ""]


def test_latest_comparison_with_the_baseline_counts(make, bench):
    problem, baseline = bench
    faster = make.candidate("faster")
    rows = table(
        [
            ProblemFound(problem=problem),
            *judged(problem, baseline, make.evaluation(baseline, problem)),
            *judged(problem, faster, make.evaluation(faster, problem)),
            Compared(comparison=make.comparison(baseline, faster, problem)),
            Compared(comparison=make.comparison(baseline, faster, problem, ratio=1.22)),
        ]
    )
    assert rows[1]["speedup_vs_baseline"] == "1.2200"


def test_text_of_an_author_cannot_break_the_table(make, bench):
    problem, _ = bench
    author = Author(name="some\tbody")
    sly = make.candidate("x", author=author, note="faster\n9\tkeep\trmsnorm\r\n  and more")
    (row,) = table(
        [ProblemFound(problem=problem), CandidateProposed(problem_hash=problem.hash, candidate=sly)]
    )
    assert row["description"] == "cpp by some body: faster 9 keep rmsnorm and more"


def test_table_is_written_without_torch(make, bench, fresh_python):
    problem, baseline = bench
    verdict = make.evaluation(baseline, problem)
    bodies = [ProblemFound(problem=problem), *judged(problem, baseline, verdict)]
    code = """
from kernelwright.core.events import BODY
from kernelwright.core.tree import fold
from kernelwright.report.results import results_tsv
text = results_tsv(fold([BODY.validate_json(body) for body in given["bodies"]]))
answer = {"text": text, "heavy": [name for name in ("torch", "triton", "numpy") if name in sys.modules]}
"""
    answer = fresh_python(code, {"bodies": [body.model_dump_json() for body in bodies]})
    assert answer == {"text": results_tsv(fold(bodies)), "heavy": []}
