"""Mutation score: automatic mutants of the correct seeds, and how many of them the judge lets pass.

    python -m benchmarks.mutation run --backend cpp --per-seed 40 --budget-s 1500 --out rows.json
    python -m benchmarks.mutation summary

A mutant is a seed with one small change of a kind that people and programs really make: a bound off by one, a dropped
statement, mask or tail, a wrong stride or fill, a missing maximum, a lower-precision accumulator, another eps, no
barrier. Only what computes is changed: comments, declared parameters, plans and named refusals are left alone. Mutants
that do not compile are discarded, and so are those whose artefact is the seed's own, byte for byte. The raw score comes
first, and what survives is listed. A survivor shown to be no mistake at all is named in EQUIVALENT (it answers what its
seed answers, to the bit) or in AS_EXACT (it adds the same terms in another order, and is as exact); it is listed with
that reason, and a second score leaves it out.
"""

import argparse
import ast
import io
import json
import random
import re
import sys
import time
import tokenize
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from kernelwright.core import plugins
from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.device import Device
from kernelwright.core.frozen import digest
from kernelwright.core.messages.judge import JudgeSettings
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import JUDGE_VERSION, REQUIRED_STAGES, Profile, Stage, Status
from kernelwright.engine.app import versions
from kernelwright.engine.seeds import seed
from kernelwright.hardware.detect import devices, usable_cores
from kernelwright.judge.evaluate import Judge
from kernelwright.judge.stages import run_stage
from kernelwright.store.disk import replace_file

RESULTS = Path(__file__).parent / "results" / "mutation.json"
SMALL_ELEMENTS = 1 << 18

BRACKETS = r"\((?:[^()]|\([^()]*\))*\)|\[[^\]]*\]"
OPERATORS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "bound off by one": ((r"(\S) < (\w)", r"\1 <= \2"), (r"(\S) <= (\w)", r"\1 < \2")),
    "starts at one": (
        (r"(for \([^;\n]*= )0;", r"\g<1>1;"),
        (r"tl\.arange\(0, (\w+)\)", r"(tl.arange(0, \1) + 1)"),
    ),
    "wrong stride": (
        (r"stride\[0\]", "stride[1]"),
        (r"stride\[1\]", "stride[0]"),
        (r"\* (\w+)_stride\b", r"* (\1_stride - 1)"),
    ),
    "eps": ((r" \+ eps\b", ""), (r"(?<!float )(?<!double )\beps\b(?=[,)])", "(eps + eps)")),
    "missing maximum": (
        (r"exp(_of|2?f?)\((\(?[^\s()]+(?:\([^()]*\))?) - [\w.]+\)", r"exp\1(\2)"),
        (r"\b(?:larger|fmaxf?|tl\.maximum)\([\w.\[\]]+, (?!.*nan=)", "("),
    ),
    # Not in the head of a loop: that is an endless one, which says nothing but that time runs out.
    "last term lost": ((r"(?m)^((?!.*\bfor \().*|.*\bfor \(.*\) [\w.\[\]* ]+) \+= ", r"\1 = "),),
    "sign": ((r"(\w) \+ (\w)", r"\1 - \2"), (r"(\w) - (\w)", r"\1 + \2")),
    # Below the class that a case declares: float in place of double is another right kernel of an fp32 problem.
    "lower precision": (
        (r"\bfloat (sum|total|square|mean|top|acc)\b", r"_Float16 \1"),
        (r"\bdouble (sum|total|plain|losses|mean|variance|reciprocal|value)\b(?! *\()", r"_Float16 \1"),
        (
            r"tl\.(zeros|full)\(([^()]*|[^()]*\([^()]*\)[^()]*), tl\.float(?:32|64)\)",
            r"tl.\1(\2, tl.float16)",
        ),
    ),
    "dropped mask": (
        (rf", mask=(?:[^,()\[\]]|{BRACKETS})+(?:, other=(?:[^,()]|{BRACKETS})+)?\)", ")"),
        (r"\bload_part\(([^,()]+), [^,()]+, \w+\)", r"load(\1)"),
        (r"\bstore_part\((?!T\* )([^,()]+), [^,()]+, ", r"store(\1, "),
    ),
    "dropped tail": ((r"for \(; \w+ < \w+; (?:\+\+\w+|\w+ \+= \w+)\)", "for (; false;)"),),
    "wrong fill": ((r'other=float\("-inf"\)', "other=0.0"), (r"other=0(?:\.0)?\b", "other=1")),
    "missing barrier": (
        (r"__syncthreads\(\);", ""),
        (r"#pragma omp (?:barrier|critical|atomic)[^\n]*", ""),
        (r" reduction\([^)]*\)", ""),
        # The end of a shared loop is a barrier; only one that others follow in the same region matters.
        (
            r"(#pragma omp for[^\n]*)(?<! nowait)(?=\n(?:(?!#pragma omp parallel)[\s\S])*?#pragma omp for)",
            r"\1 nowait",
        ),
    ),
    "dropped statement": ((r"(?m)^( +)[\w.\[\]>*-]+ [+*]?= [^;{}]*;$", r"\1;"),),
}
"""Kinds of mistakes as substitutions of one place in a source."""
COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
DECLARATION = re.compile(r"(?m)^ *(?:#include|template|using).*$")
REFUSAL = re.compile(r'(?m)^.*(?:KW_UNSUPPORTED|"unsupported").*$')
FLAG = re.compile(r"\bbool (\w+) = (?=.*(?:if \(!?\1\) return|return \1 \?) KW_UNSUPPORTED)", re.DOTALL)
"""A variable that only says whether to refuse: what sets it is part of the refusal."""
PREDICATE = re.compile(r"(?m)^(?:static |inline )*bool (\w+)\(.*\}$")
"""A condition of one line: part of a refusal if nothing else asks for it."""
LAST_SINGLY = "the last whole vector is converted by the loop for single elements"
NO_ELEMENTS = "one more block of no elements: nothing is computed of it and nothing stored"
EQUIVALENT: Mapping[str, str] = {
    "cpp/attention/287/bound off by one/54c39d61": NO_ELEMENTS,
    "cpp/layernorm/49/bound off by one/fd47268d": "one more part of no elements: its lanes hold the fill, which adds "
    "a distance of zero, and nothing of it is stored",
    "cpp/matmul/49/bound off by one/8c9ca50a": LAST_SINGLY,
    "cpp/reduce/45/bound off by one/be8b5674": "one more part of no elements: its lanes hold the fill, zero for a sum "
    "and minus infinity for a maximum",
    "cpp/rmsnorm/29/bound off by one/60a25adc": "the last whole block is added by the loop for single elements, each "
    "to the same partial sum",
    "cpp/rmsnorm/55/bound off by one/f61281d2": "the last whole vector is scaled by the loop for single elements, by "
    "the same two products",
    "cpp/rope/25/bound off by one/3141742a": LAST_SINGLY,
    "cpp/rope/32/bound off by one/5992a29e": LAST_SINGLY,
    "cpp/rope/39/bound off by one/6bc4446c": NO_ELEMENTS,
    "cpp/rope/58/bound off by one/4529990a": NO_ELEMENTS,
    "cpp/softmax/49/bound off by one/b00bd35c": "one more part of no elements: its lanes hold minus infinity, whose "
    "exponential is zero, and nothing of it is stored",
    "cpp/swiglu_mlp/90/bound off by one/c3ea2d95": "differs at zero alone, where the exponential of 0 and of -0 is 1",
    "cpp/swiglu_mlp/164/bound off by one/b8714c2f": NO_ELEMENTS,
    "cpp/swiglu_mlp/180/bound off by one/fc69497b": LAST_SINGLY,
}
"""Survivors that are right, by key, and why; tests/cpu/test_mutation.py finds the answers of each to be its seed's, to
the bit."""
ANOTHER_ORDER = "the same terms in another order: the last bits differ, the error against float64 does not"
AS_EXACT: Mapping[str, str] = {
    "cpp/layernorm/46/bound off by one/f8dcc794": ANOTHER_ORDER,
    "cpp/reduce/42/bound off by one/7c19e54b": ANOTHER_ORDER,
    "cpp/rmsnorm/36/starts at one/3f42c308": ANOTHER_ORDER,
    "cpp/softmax/46/bound off by one/ba3f93df": ANOTHER_ORDER,
}
"""Survivors that are right, too; tests find each as exact as its seed to 1 %, and those without compensation not."""
EXCUSED = {**EQUIVALENT, **AS_EXACT}
NOT_COMPENSATED = (
    "less exact: a sum without its compensation, or with it on the wrong side, within the error budget"
)
ANOTHER_POWER = "exponentials of a row all -4 times what they were, which cancels but for "
UNEXCUSED: Mapping[str, str] = {
    "cpp/attention/98/sign/66efe33e": f"{ANOTHER_POWER}the sign of zero",
    "cpp/attention/167/bound off by one/44918adf": "wrong from a head_dim of 248 on: no case has more than 128",
    "cpp/layernorm/66/sign/6b2f1652": NOT_COMPENSATED,
    "cpp/layernorm/82/last term lost/228b2d2a": "less exact: starts from a worse guess of the mean",
    "cpp/reduce/52/sign/d4dc15e7": NOT_COMPENSATED,
    "cpp/reduce/53/dropped statement/2cb52ce4": NOT_COMPENSATED,
    "cpp/softmax/57/dropped statement/c6f84826": NOT_COMPENSATED,
    "cpp/softmax/95/sign/8dbef115": f"{ANOTHER_POWER}those below the smallest normal number",
}
"""Survivors that count, by key, and what they get away with."""


class Mutant(NamedTuple):
    """One change to one seed."""

    operator: str
    line: int
    before: str
    after: str
    source: str


def left_alone(source: str, is_python: bool) -> list[tuple[int, int]]:
    """Return the stretches of a source that compute nothing: comments, parameters, plans, refusals."""
    spans = _spoken_in_python(source) if is_python else _spoken_in_c(source)
    spans += [found.span() for found in DECLARATION.finditer(source)]
    refusals = [found.span() for found in REFUSAL.finditer(source)]
    for found in PREDICATE.finditer(source):
        asked = [use.start() for use in re.finditer(rf"\b{found[1]}\(", source)]
        others = [place for place in asked if not found.start() <= place < found.end()]
        if others and all(any(start <= place < end for start, end in refusals) for place in others):
            spans.append(found.span())
    return spans + refusals


def _spoken_in_c(source: str) -> list[tuple[int, int]]:
    return [found.span() for found in COMMENT.finditer(source) if not found[0].startswith('"')]


def _spoken_in_python(source: str) -> list[tuple[int, int]]:
    """Return comments, docstrings, PARAMS, `plan` and the heads of functions of a Python source."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    spans = [
        (starts[token.start[0] - 1] + token.start[1], starts[token.end[0] - 1] + token.end[1])
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    for node in ast.walk(tree := ast.parse(source)):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_declared = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PARAMS"
        is_plan = node in tree.body and isinstance(node, ast.FunctionDef) and node.name == "plan"
        if isinstance(node, ast.stmt) and (is_text or is_declared or is_plan):
            spans.append((starts[node.lineno - 1], starts[node.end_lineno or node.lineno]))
        elif isinstance(node, ast.FunctionDef):
            spans.append((starts[node.lineno - 1], starts[node.body[0].lineno - 1]))
    return spans


def mutants(source: str) -> Iterator[Mutant]:
    """Yield every mutant of a source."""
    is_python = "@triton.jit" in source or "@gluon.jit" in source
    spans, flags = left_alone(source, is_python), set(FLAG.findall(source))
    for operator, rules in OPERATORS.items():
        for pattern, replacement in rules:
            for match in re.finditer(pattern, source):
                start = source.rfind("\n", 0, match.start()) + 1
                end = source.find("\n", match.end())
                line = source[start:end]
                if any(first <= match.start() < last for first, last in spans):
                    continue
                if flags & set(re.findall(r"\w+", match[0])):
                    continue
                new = match.expand(replacement)
                if "__global__" in source:
                    new = new.replace("_Float16", "__half")
                changed = source[: match.start()] + new + source[match.end() :]
                after = changed[start : end + len(changed) - len(source)]
                yield Mutant(operator, source.count("\n", 0, start) + 1, line.strip(), after.strip(), changed)


def key_of(backend: str, op_name: str, mutant: Mutant) -> str:
    """Return a mutant's name; what was found of it holds for no other version of its seed."""
    return f"{backend}/{op_name}/{mutant.line}/{mutant.operator}/{digest(mutant.source)[:8]}"


def sample(source: str, count: int, key: str) -> list[Mutant]:
    """Return mutants of a source, as many of every kind as possible, the same ones each time."""
    rng = random.Random(key)
    groups: dict[str, list[Mutant]] = {}
    for mutant in mutants(source):
        groups.setdefault(mutant.operator, []).append(mutant)
    for group in groups.values():
        rng.shuffle(group)
    chosen: list[Mutant] = []
    while groups and len(chosen) < count:
        for operator in list(groups):
            if len(chosen) < count:
                chosen.append(groups[operator].pop())
            if not groups[operator]:
                del groups[operator]
    return chosen


def problem_of(op_name: str, device: Device) -> Problem:
    """Return a small problem of an op."""
    cases = [
        case
        for case in plugins.load("ops", op_name).public_cases()
        if sum(spec.numel for spec in case.inputs) <= SMALL_ELEMENTS
    ]
    return Problem(op=op_name, cases=(cases[-1],), device=device)


def judged(judge: Judge, problem: Problem, candidate: Candidate) -> tuple[str, str, str]:
    """Return status, stage and reason of the first failure before any timing; accepted if there is none."""
    bench = judge.bench(problem, candidate)
    for stage in REQUIRED_STAGES[Profile.SHIP]:
        if stage is Stage.TIMING:
            continue
        _, failure = run_stage(stage, bench)
        if failure:
            return failure.status.value, stage.value, failure.reason[:200]
    return Status.ACCEPTED.value, "", ""


def artefact(judge: Judge, candidate: Candidate) -> str:
    """Return the digest of a tier-B artefact; empty if it cannot be built."""
    _, path = judge.builds.get(candidate, candidate.values_for(""))
    return "" if path is None else digest(path.read_bytes().hex())


def run(judge: Judge, backend: str, per_seed: int, deadline: float, out: Path) -> None:
    """Judge mutants of every seed of a backend until the time is up."""
    rows = {row["key"]: row for path in (RESULTS, out) if path.exists() for row in rows_of(path)}
    device = next(one for one in devices() if (one.kind == "cpu") == (backend == "cpp"))
    for op_name in plugins.names("ops"):
        base = seed(op_name, backend, Origin.AUTHOR)
        if base is None:
            continue
        own = artefact(judge, base) if backend == "cpp" else ""
        for mutant in sample(base.source, per_seed, op_name):
            key = key_of(backend, op_name, mutant)
            if key in rows or time.monotonic() > deadline:
                continue
            candidate = base.model_copy(update={"source": mutant.source})
            started = time.perf_counter()
            status, stage, reason = judged(judge, problem_of(op_name, device), candidate)
            if status == Status.ACCEPTED.value and own and artefact(judge, candidate) == own:
                status = "same artefact"
            rows[key] = {
                "key": key,
                "judge": JUDGE_VERSION,
                "before": mutant.before,
                "after": mutant.after,
                "status": status,
                "stage": stage,
                "reason": reason,
                "seconds": round(time.perf_counter() - started, 1),
            }
            save(rows, out, device)
            print(f"{key}: {status} {stage}")


def save(rows: Mapping[str, object], out: Path, device: Device) -> None:
    """Write all rows, at once."""
    head = {
        "device": device.model_dump(mode="json"),
        "versions": versions(),
        "command": " ".join(["python -m benchmarks.mutation", *sys.argv[1:]]),
    }
    head |= {"date": datetime.now(UTC).isoformat(timespec="seconds")}
    replace_file(out, (json.dumps(head | {"rows": list(rows.values())}, indent=1) + "\n").encode())


def rows_of(path: Path) -> list[dict[str, Any]]:  # Any: texts, and seconds
    """Return the rows of a result file that the present judge wrote, of mutants there still are."""
    found: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    known = {
        key_of(backend, op_name, mutant)
        for backend in {row["key"].split("/")[0] for row in found}
        for op_name in plugins.names("ops")
        if (base := seed(op_name, backend, Origin.AUTHOR)) is not None
        for mutant in mutants(base.source)
    }
    return [row for row in found if row["judge"] == JUDGE_VERSION and row["key"] in known]


def summary(path: Path) -> dict[str, object]:
    """Return the score, per backend, and the survivors."""
    found: dict[str, object] = {}
    rows = rows_of(path)
    for backend in sorted({row["key"].split("/")[0] for row in rows}):
        own = [row for row in rows if row["key"].startswith(f"{backend}/")]
        born = [row for row in own if row["status"] not in (Status.BUILD_FAILED.value, "same artefact")]
        alive = [row for row in born if row["status"] == Status.ACCEPTED.value]
        wrong = [row for row in alive if row["key"] not in EXCUSED]
        judged_count = len(born) - (len(alive) - len(wrong))
        kinds = {
            kind: f"{sum(row['status'] != Status.ACCEPTED.value for row in some)} of {len(some)}"
            for kind in OPERATORS
            if (some := [row for row in born if row["key"].split("/")[3] == kind])
        }
        found[backend] = {
            "mutants": len(own),
            "not compiled or the same artefact": len(own) - len(born),
            "killed": len(born) - len(alive),
            "killed of": len(born),
            "score": round(1 - len(alive) / max(1, len(born)), 4),
            "score without those shown to be right": round(1 - len(wrong) / max(1, judged_count), 4),
            "killed by kind": dict(sorted(kinds.items())),
            "survivors": {
                f"{row['key']}: {row['before']} -> {row['after']}": UNEXCUSED.get(row["key"], "")
                for row in wrong
            },
            "excused": {
                f"{row['key']}: {row['before']} -> {row['after']}": EXCUSED[row["key"]]
                for row in alive
                if row["key"] in EXCUSED
            },
        }
    return found


def main() -> None:
    """Judge mutants, or sum up."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("run", "summary"))
    parser.add_argument("--backend", default="cpp")
    parser.add_argument("--per-seed", type=int, default=40)
    parser.add_argument("--budget-s", type=float, default=1500)
    parser.add_argument("--home", type=Path, default=Path("/tmp/kernelwright-mutation"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.part == "summary":
        found = json.loads(options.out.read_text())
        found |= {"rows": rows_of(options.out), "summary": summary(options.out)}
        options.out.write_text(json.dumps(found, indent=1) + "\n")
        print(json.dumps(found["summary"], indent=1))
        return
    settings = JudgeSettings(
        threads=usable_cores(),
        max_pairs=60,
        alpha=0.001,
        hidden_shapes=8,
        cache_folder=str(options.home / "cache"),
        blob_folder=str(options.home / "blobs"),
    )
    judge = Judge(settings, lambda _: None)
    try:
        run(judge, options.backend, options.per_seed, time.monotonic() + options.budget_s, options.out)
    finally:
        judge.close()


if __name__ == "__main__":
    main()
