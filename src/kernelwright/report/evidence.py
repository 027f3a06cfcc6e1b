"""What a winner's claim rests on: its certificate, and where its cases lie on the roofline."""

from kernelwright.core.roofline import sol_score
from kernelwright.core.tree import Node
from kernelwright.core.verdict import Comparison, Evaluation, Timing
from kernelwright.report.measures import last_certificate, short_name, work_of
from kernelwright.report.model import CertificateFact, ComparisonFact, Point, StageFact, TimeFact
from kernelwright.report.standing import Standing, interval


def certificate(found: Standing) -> CertificateFact | None:
    """Return the proof of a problem's winner; None where a baseline holds the title."""
    node = found.winner
    verdict = last_certificate(node) if node else None
    if node is None or verdict is None or verdict.timing is None:
        return None
    tree = found.tree
    hidden = tree.started.config.get("hidden_shapes") if tree.started else None
    tried = tree.tried.get(found.problem.hash)
    return CertificateFact(
        profile=verdict.profile.value,
        status=verdict.status.value,
        judge_version=verdict.judge_version,
        clock=verdict.timing.clock,
        seconds=verdict.seconds,
        hidden_shapes=hidden if isinstance(hidden, int) else None,
        times=_certified(found, verdict.timing),
        stages=_stages(verdict),
        comparisons=tuple(_comparison(found, one) for one in node.comparisons),
        environment=verdict.environment,
        error=tried.drift if tried else None,
    )


def _certified(found: Standing, timing: Timing) -> tuple[TimeFact, ...]:
    baselines = {one.case_hash: one.incumbent_us for one in found.proof.cases} if found.proof else {}
    return tuple(
        TimeFact(
            case=one.label,
            cold_us=one.median_us,
            warm_us=one.warm_us,
            floor_us=one.floor_us,
            floor_share=one.floor_share,
            sol_score=sol_score(one.median_us, one.floor_us, baselines[one.case_hash])
            if one.floor_us is not None and one.case_hash in baselines
            else None,
        )
        for one in timing.cases
    )


def _stages(verdict: Evaluation) -> tuple[StageFact, ...]:
    return tuple(
        StageFact(
            name=one.stage.value,
            passed=one.passed,
            seconds=one.seconds,
            checked=one.checked,
            reason=one.reason,
        )
        for one in verdict.stages
    )


def _comparison(found: Standing, one: Comparison) -> ComparisonFact:
    incumbent = found.tree.nodes.get((found.problem.hash, one.incumbent_hash))
    return ComparisonFact(
        incumbent=short_name(incumbent.candidate) if incumbent else one.incumbent_hash[:12],
        outcome=one.outcome.value.replace("_", " "),
        interval=interval(one),
        pairs=one.pairs,
        starts=one.starts,
        evidence=one.e_faster,
        clock=one.clock,
    )


def points(found: Standing) -> tuple[Point, ...]:
    """Return every case on the roofline, by the times of the comparison if there is one."""
    work, proof = work_of(found.problem), found.proof
    before, after, floors = _times(found.first), _times(found.winner), _floors(found)
    if proof is not None:
        before |= {one.case_hash: one.incumbent_us for one in proof.cases}
        after |= {one.case_hash: one.challenger_us for one in proof.cases}
    placed = []
    for case in found.problem.cases:
        one = work.get(case.hash)
        is_timed = case.hash in before or case.hash in after
        if one is None or not one.flops or not one.bytes_moved or not is_timed:
            continue
        rates = [
            one.flops / times[case.hash] * 1e6 if case.hash in times else None
            for times in (before, after, floors)
        ]
        placed.append(
            Point(
                label=case.label,
                intensity=one.flops / one.bytes_moved,
                before=rates[0],
                after=rates[1],
                floor=rates[2],
                compute_class=one.compute_class,
            )
        )
    return tuple(placed)


def _times(node: Node | None) -> dict[str, float]:
    verdict = last_certificate(node) if node else None
    return (
        {one.case_hash: one.median_us for one in verdict.timing.cases} if verdict and verdict.timing else {}
    )


def _floors(found: Standing) -> dict[str, float]:
    for node in (found.winner, found.first):
        verdict = last_certificate(node) if node else None
        if verdict and verdict.timing:
            return {one.case_hash: one.floor_us for one in verdict.timing.cases if one.floor_us}
    return {}
