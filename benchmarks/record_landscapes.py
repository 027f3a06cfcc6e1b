"""Landscapes for comparing searches without a device: real kernels around the seeds, timed beside the seed itself.

    python -m benchmarks.record_landscapes --device cpu --op softmax --op rope       # from the repository's root
    python -m benchmarks.record_landscapes --device cuda --op softmax --budget-s 220 --shard 0/2
    python -m benchmarks.record_landscapes --device cuda --op softmax --finish

Points are a connected sample of a seed's grid of `PARAMS`. On a CPU the grid is widened and the seed gets two compiler
switches in front, because its own has few points; a point is timed if it passes the judge's quick profile. Every heat
times a few points and the reference (the first seed with its first values) in turns. A part file grows point by point:
a run that is cut short goes on where it stopped, and shards of one device are put together with --finish.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import torch
from benchmarks import cpu_heats
from benchmarks.landscape_points import CASES, Point, problem_of, sources_of, wanted

from kernelwright.core.candidate import Author, Candidate, Origin, ParamChoice, ParamValue
from kernelwright.core.case import Case
from kernelwright.core.device import Device
from kernelwright.core.landscape import Landscape, Look, Source, Spot, grid_edges, spot_key
from kernelwright.core.messages.judge import Compare, JudgeSettings
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import JUDGE_VERSION, Profile, Status
from kernelwright.engine.app import versions
from kernelwright.hardware.detect import devices
from kernelwright.hardware.lock import DeviceLock
from kernelwright.judge.children import Lost
from kernelwright.judge.clock import heats_of
from kernelwright.judge.evaluate import Judge
from kernelwright.judge.execution import compile_ahead, compile_cases
from kernelwright.judge.heat import TimingFailed
from kernelwright.judge.stages import Bench

FOLDER = Path(__file__).parent / "landscapes"
ARMS = {"cpu": 5, "cuda": 8}
"""Points timed beside the reference in one heat."""
CPU_PROOF_S = 3.11
"""A keep verdict after its build on two quiet cores (results/judge_speed.json); a GPU's is measured with the points."""
HEATS = {"cpu": 5, "cuda": 3}


Looks = dict[int, tuple[Look, ...]]
Failures = dict[int, tuple[Status, str]]
"""By place in the group."""


@dataclass
class Recorder:
    """One op on one device, point by point."""

    judge: Judge
    problem: Problem
    sources: dict[str, Source]
    part: Path
    deadline: float
    spots: list[Spot] = field(default_factory=list)

    def candidate(self, own: str, values: dict[str, ParamValue]) -> Candidate:
        """Return a point as a candidate."""
        source = self.sources[own]
        return Candidate(
            op=self.problem.op,
            backend=source.backend,
            source=source.text,
            choices=(ParamChoice(values=values),),
            origin=source.origin,
            author=Author(name="landscape", detail=source.name),
        )

    def bench(self, candidate: Candidate) -> Bench:
        """Return what the judge's clock works on."""
        return self.judge.bench(self.problem, candidate)

    @property
    def is_cpu(self) -> bool:
        """Tell whether the device is a CPU."""
        return self.problem.device.kind.value == "cpu"

    def built(self, candidate: Candidate) -> tuple[Status, str, float]:
        """Build a point; return how that ended and the seconds it took."""
        started = time.perf_counter()
        if self.is_cpu:
            verdict = self.judge.evaluate(self.problem, candidate, Profile.QUICK)
            reason = verdict.failure.reason[:300] if verdict.failure else ""
            return verdict.status, reason, time.perf_counter() - started
        if candidate.origin is Origin.BASELINE:
            return Status.ACCEPTED, "", 0.0
        try:
            compile_cases(candidate, self.problem.cases, self.problem.device, self.judge.builds)
        except Lost as lost:
            return lost.status, lost.reason[:300], time.perf_counter() - started
        return Status.ACCEPTED, "", time.perf_counter() - started

    def record(self, points: Sequence[Point], reference: Candidate) -> None:
        """Time the points that are not in the part file yet, a few at a time."""
        done, arms = {spot.key() for spot in self.spots}, ARMS["cpu" if self.is_cpu else "cuda"]
        left = [(own, values) for own, values in points if spot_key(own, values) not in done]
        for start in range(0, len(left), arms):
            if time.monotonic() > self.deadline:
                print(f"{self.problem.op}: out of time with {len(left) - start} points left; run again")
                return
            if not self.is_cpu:
                self._compile_ahead(left[start : start + 2 * arms])
            self.spots += self._group(left[start : start + arms], reference)
            self.save()

    def _compile_ahead(self, points: Sequence[Point]) -> None:
        """Start compiling this group and the next on other cores."""
        for own, values in points:
            if self.sources[own].origin is not Origin.BASELINE:
                candidate = self.candidate(own, values)
                compile_ahead(candidate, self.problem.cases, self.problem.device, self.judge.builds)

    def _group(self, group: Sequence[Point], reference: Candidate) -> Iterator[Spot]:
        """Yield the spots of one group: built one by one, timed together."""
        arms: dict[int, Bench] = {}
        found: dict[int, Spot] = {}
        for place, (own, values) in enumerate(group):
            candidate = self.candidate(own, values)
            status, reason, seconds = self.built(candidate)
            found[place] = Spot(
                source=own, values=values, status=status, reason=reason, build_s=round(seconds, 3)
            )
            if status is Status.ACCEPTED:
                arms[place] = self.bench(candidate)
                found[place] = found[place].model_copy(update={"reason": ""})
        started = time.perf_counter()
        times, failed = self._timed(arms, self.bench(reference))
        share = (time.perf_counter() - started) / max(1, len(arms))
        for place, spot in found.items():
            if place in failed:
                status, reason = failed[place]
                spot = spot.model_copy(update={"status": status, "reason": reason[:300]})
            elif place in arms:
                spot = spot.model_copy(update={"looks": times[place], "screen_s": round(share, 3)})
            yield spot

    def _timed(self, arms: dict[int, Bench], reference: Bench) -> tuple[Looks, Failures]:
        """Time arms beside the reference; one that fails leaves, and the others are timed again."""
        if not arms:
            return {}, {}
        try:
            return self._looks(arms, reference), {}
        except TimingFailed as error:
            if error.arm == 0:
                raise
            lost = list(arms)[error.arm - 1]
            looks, failures = self._timed(
                {place: one for place, one in arms.items() if place != lost}, reference
            )
            return looks, failures | {lost: (error.failure.status, error.failure.reason)}
        except Lost as error:  # one of them took the launcher down, and nobody knows which
            if len(arms) == 1:
                return {}, {next(iter(arms)): (error.status, error.reason)}
        looks, failures = {}, {}
        for place, one in arms.items():
            more, worse = self._timed({place: one}, reference)
            looks, failures = looks | more, failures | worse
        return looks, failures

    def _looks(self, arms: dict[int, Bench], reference: Bench) -> Looks:
        """Return the times of all arms on every case."""
        looks: dict[int, list[Look]] = {place: [] for place in arms}
        where = nullcontext() if self.is_cpu else torch.device(reference.where)
        # On a CPU the thread's own time is taken, so others may go on; a GPU is ours alone meanwhile.
        with nullcontext() if self.is_cpu else DeviceLock(self.problem.device, show=print), where:
            for case in self.problem.cases:
                rows = self._heats(case, [reference, *arms.values()])
                for rank, place in enumerate(arms, start=1):
                    times, against = ([round(row[arm], 3) for row in rows] for arm in (rank, 0))
                    looks[place].append(Look(case_hash=case.hash, times_us=times, against_us=against))
        return {place: tuple(found) for place, found in looks.items()}

    def _heats(self, case: Case, benches: Sequence[Bench]) -> list[list[float]]:
        if not self.is_cpu:
            with heats_of(benches) as heats:
                size = heats.size(benches[0], case)
                return [heats.measure(case, benches, size) for _ in range(HEATS["cuda"])]
        tensors = cpu_heats.tensors_of(case)
        calls = []
        for bench in benches:
            candidate = bench.candidate
            if candidate.origin is Origin.BASELINE:
                calls.append(cpu_heats.eager(candidate.source, case, tensors))
            else:
                _, artefact = self.judge.builds.get(candidate, candidate.values_for(case.hash))
                assert artefact is not None, "only what was built is timed"
                calls.append(cpu_heats.native(artefact, case, tensors))
        return cpu_heats.heats(calls, HEATS["cpu"], random.Random(0))

    def save(self) -> None:
        """Write the part file."""
        rows = [spot.model_dump(mode="json") for spot in self.spots]
        self.part.write_text(json.dumps({"spots": rows}))


def proof_seconds(judge: Judge, problem: Problem, baseline: Candidate, root: Candidate) -> float:
    """Return the seconds a root's full verdict and its comparison with the baseline take."""
    judge.evaluate(problem, baseline, Profile.KEEP)
    started = time.perf_counter()
    verdict = judge.evaluate(problem, root, Profile.KEEP)
    if verdict.status is not Status.ACCEPTED:
        sys.exit(f"the reference itself is {verdict.status.value}: {verdict.failure}")
    judge.compare(Compare(problem=problem, incumbent=baseline, challengers=(root,)))
    return time.perf_counter() - started


def finish(op_name: str, kind: str, folder: Path, count: int) -> None:
    """Put all parts of an op together into its landscape: what can be reached from the seeds that were timed."""
    sources = sources_of(op_name, kind)
    spots: dict[str, Spot] = {}
    for path in sorted(folder.glob(f"{op_name}.*.part.json")):
        for row in json.loads(path.read_text())["spots"]:
            spot = Spot.model_validate(row)
            spots.setdefault(spot.key(), spot)
    order = [spot_key(own, values) for own, values in wanted(sources, count)]
    starts = [own for own in order[1 : len(sources)] if own in spots and spots[own].looks]
    found = reachable([spots[own] for own in order if own in spots], spots[order[0]], starts)
    place_of = {spot.key(): place for place, spot in enumerate(found)}
    proof = json.loads((folder / f"{op_name}.proof.json").read_text())
    landscape = Landscape(
        problem=Problem.model_validate(proof["problem"]),
        sources={own: source for own, source in sources.items() if own in {spot.source for spot in found}},
        spots=tuple(found),
        baseline=0,
        roots=tuple(place_of[own] for own in starts),
        edges=grid_edges(found),
        proof_s=proof["seconds"],
        recorded=proof["recorded"],
    )
    out = folder / f"{op_name}.json"
    out.write_text(landscape.model_dump_json(indent=1) + "\n")
    for path in (*folder.glob(f"{op_name}.*.part.json"), folder / f"{op_name}.proof.json"):
        path.unlink()
    print(f"{out}: {len(found)} of {len(order)} points, best x{landscape.best_speed:.2f}")


def reachable(spots: Sequence[Spot], baseline: Spot, starts: Sequence[str]) -> list[Spot]:
    """Return the baseline and every spot a search can get to: a part that was cut short may have islands."""
    near: dict[int, list[int]] = {}
    for one, other in grid_edges(spots):
        near.setdefault(one, []).append(other)
        near.setdefault(other, []).append(one)
    open_ends = [place for place, spot in enumerate(spots) if spot.key() in starts]
    reached = set(open_ends)
    while open_ends:
        fresh = set(near.get(open_ends.pop(), [])) - reached
        reached |= fresh
        open_ends += fresh
    return [baseline, *(spots[place] for place in sorted(reached))]


def record_op(op_name: str, device: Device, options: argparse.Namespace, folder: Path) -> None:
    """Record one shard of one op."""
    number, shards = (int(word) for word in options.shard.split("/"))
    problem, sources = problem_of(op_name, device), sources_of(op_name, options.device)
    part = folder / f"{op_name}.{number}of{shards}.part.json"
    points = wanted(sources, options.points)
    with tempfile.TemporaryDirectory(prefix="kernelwright-landscape-") as scratch:
        settings = JudgeSettings(
            threads=1,
            max_pairs=20,
            alpha=0.001,
            hidden_shapes=4,
            cache_folder=str((options.home or Path(scratch)) / "cache"),
            blob_folder=str(Path(scratch) / "blobs"),
            gate_pairs=0,
        )
        judge = Judge(settings, lambda _: None)
        recorder = Recorder(judge, problem, sources, part, time.monotonic() + options.budget_s)
        if part.exists():
            recorder.spots = [Spot.model_validate(row) for row in json.loads(part.read_text())["spots"]]
        try:
            reference, baseline = recorder.candidate(*points[1]), recorder.candidate(*points[0])
            status, reason, _ = recorder.built(reference)
            if status is not Status.ACCEPTED:
                sys.exit(f"the reference itself is {status.value}: {reason}")
            proof = folder / f"{op_name}.proof.json"
            if number == 0 and not proof.exists():
                seconds = (
                    CPU_PROOF_S if recorder.is_cpu else proof_seconds(judge, problem, baseline, reference)
                )
                head = {"problem": problem.model_dump(mode="json"), "seconds": round(seconds, 3)}
                proof.write_text(json.dumps(head | {"recorded": provenance(device)}))
            recorder.record(points[number::shards], reference)
        finally:
            judge.close()
    print(f"{part}: {len(recorder.spots)} of {len(points[number::shards])} points")
    if shards == 1 and len(recorder.spots) == len(points):
        finish(op_name, options.device, folder, options.points)


def provenance(device: Device) -> dict[str, str]:
    """Return how a landscape came about."""
    found = {"command": " ".join(["python -m benchmarks.record_landscapes", *sys.argv[1:]])}
    found |= {"date": datetime.now(UTC).isoformat(timespec="seconds"), "judge": JUDGE_VERSION}
    is_cpu = device.kind.value == "cpu"
    clock = "processor time of one thread, caches warm" if is_cpu else "launcher events, caches cold"
    return found | {"device": device.title, "clock": clock} | versions()


def main() -> None:
    """Record what was asked for until the budget is spent."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--op", action="append", default=[])
    parser.add_argument(
        "--points", type=int, default=40, help="points of each source, the first values included"
    )
    parser.add_argument(
        "--budget-s", type=float, default=220, help="seconds of each op, after which it stops"
    )
    parser.add_argument("--shard", default="0/1", help="which part of the points: NUMBER/COUNT")
    parser.add_argument("--finish", action="store_true", help="put the shards of the ops together")
    parser.add_argument("--home", type=Path, help="where built kernels are kept from one run to the next")
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    folder = options.out / options.device
    folder.mkdir(parents=True, exist_ok=True)
    for op_name in options.op or list(CASES[options.device]):
        if options.finish:
            finish(op_name, options.device, folder, options.points)
        else:
            device = next(one for one in devices() if one.kind.value == options.device)
            record_op(op_name, device, options, folder)


if __name__ == "__main__":
    main()
