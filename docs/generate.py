"""Writes the generated parts of README and docs; `--check` fails if they have drifted, `--sizes` prints line counts.

Generated parts stand between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

import argparse
import ast
import inspect
import json
import math
import re
import sys
import typing
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel

from kernelwright.cli import (
    apply,
    backends,
    counters,
    doctor,
    export,
    extract,
    journal,
    judge,
    lessons,
    new,
    ops,
    optimize,
    playbook,
    profile,
    rejudge,
    replay,
    report,
    show,
    submit,
    tune,
    verify,
    version,
)
from kernelwright.cli.main import build_app
from kernelwright.cli.mcp import verbs as mcp
from kernelwright.cli.mcp.clients import CLIENTS
from kernelwright.cli.mcp.server import TOOLS
from kernelwright.cli.screen import ExitCode
from kernelwright.core import plugins, verdict
from kernelwright.core.brief import Brief
from kernelwright.core.config import RunConfig
from kernelwright.core.frozen import digest
from kernelwright.core.problem import Problem
from kernelwright.core.technique import Bottleneck, Tier
from kernelwright.hardware.diagnose import ALL_RULES
from kernelwright.report.catalogue import op_rows
from kernelwright.store.playbook import read_playbook

ROOT = Path(__file__).parents[1]
FILES = (
    "README.md",
    "docs/cli.md",
    "docs/vocabulary.md",
    "docs/measured.md",
    "docs/judging.md",
    "docs/playbook.md",
    "docs/moves.md",
    "docs/diagnosing.md",
    "docs/assistants.md",
)
LANGUAGES = ("cpp", "triton", "cuda", "eager", "compiled")
ANSWERS: dict[str, type[BaseModel]] = {
    "optimize": optimize.OptimizeAnswer,
    "brief": Brief,
    "submit": submit.SubmitAnswer,
    "rejudge": rejudge.RejudgeAnswer,
    "replay": replay.ReplayAnswer,
    "profile": profile.ProfileAnswer,
    "extract": extract.ExtractAnswer,
    "apply": apply.ApplyAnswer,
    "verify": verify.VerifyAnswer,
    "tune": tune.TuneAnswer,
    "new": new.NewAnswer,
    "judge": judge.JudgeAnswer,
    "counters": counters.CountersAnswer,
    "doctor": doctor.DoctorAnswer,
    "show": show.ShowAnswer,
    "report": report.ReportAnswer,
    "journal verify": journal.VerifyAnswer,
    "journal events": journal.EventsAnswer,
    "export trajectories": export.TrajectoriesAnswer,
    "mcp install": mcp.InstallAnswer,
    "ops": ops.OpsAnswer,
    "backends": backends.BackendsAnswer,
    "playbook": playbook.PlaybookAnswer,
    "lessons list": lessons.LessonsAnswer,
    "lessons show": lessons.LessonsAnswer,
    "lessons export": lessons.CarriedAnswer,
    "lessons import": lessons.CarriedAnswer,
    "version": version.VersionAnswer,
}


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def members(kind: type[Enum]) -> list[list[str]]:
    """Return name and documentation line of every member of an enum."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    docs, name = {}, ""
    for node in body.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]):
                pass
            case ast.Expr(value=ast.Constant(value=str(text))) if name:
                docs[name] = text
    return [[f"`{member.value}`", docs[member.name]] for member in kind]


def nested(kind: Any) -> list[type[BaseModel]]:
    """Return the models an annotation mentions."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    return [model for inner in typing.get_args(kind) for model in nested(inner)]


def schema(model: type[BaseModel]) -> str:
    """Return the fields of a model and of every model inside it."""
    found, waiting = [], [model]
    while waiting:
        current = waiting.pop(0)
        if current not in found:
            found.append(current)
            waiting += [inner for info in current.model_fields.values() for inner in nested(info.annotation)]
    head, *rest = found
    return "\n\n".join([fields(head), *(f"`{inner.__name__}`:\n\n{fields(inner)}" for inner in rest)])


def fields(model: type[BaseModel]) -> str:
    """Return the documented fields of a model."""
    rows = []
    kinds = typing.get_type_hints(model)  # without what narrows them: a bounded text is a text
    for name, info in model.model_fields.items():
        kind = inspect.formatannotation(kinds[name]).replace("kernelwright.", "")
        kind = re.sub(r"Optional\[([^\[\]]+)\]", r"\1 | None", kind)
        kind = re.sub(r"Union\[([^\[\]]+)\]", lambda found: found[1].replace(", ", " | "), kind)
        rows.append([f"`{name}`", f"`{re.sub(r'[a-z_]+[.]', '', kind)}`", info.description or ""])
    return table(["field", "type", "meaning"], rows)


def ops_table() -> str:
    """Return every op and the languages it has a starting kernel in."""
    rows = [
        [f"`{row.name}`", row.summary, *("yes" if language in row.seeds else "" for language in LANGUAGES)]
        for row in op_rows()
    ]
    return table(["op", "computes", *LANGUAGES], rows)


def help_text() -> str:
    """Return every verb's help and the fields of its JSON."""
    parts = []
    for name, model in ANSWERS.items():
        command: Any = typer.main.get_command(
            build_app()
        )  # Any: typer vendors click, whose types have no public home
        for word in name.split():
            command = command.commands[word]
        context = command.context_class(command, info_name=f"kernelwright {name}", terminal_width=100)
        usage = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
        parts.append(f"## {name}\n\n```text\n{usage}\n```\n\nWith `--json`:\n\n{schema(model)}")
    return "\n\n".join(parts)


def drawers() -> str:
    """Return what each drawer holds."""
    return table(
        ["drawer", "files"],
        [[f"`{drawer}/`", ", ".join(plugins.names(drawer)) or "empty so far"] for drawer in plugins.DRAWERS],
    )


def stage_profiles() -> str:
    """Return every stage, the profiles that run it, and what it checks."""
    rows = [
        [
            name,
            *("yes" if stage in verdict.REQUIRED_STAGES[profile] else "" for profile in verdict.Profile),
            text,
        ]
        for stage, (name, text) in zip(verdict.Stage, members(verdict.Stage), strict=True)
    ]
    return table(["stage", *(profile.value for profile in verdict.Profile), "what it checks"], rows)


CHART = (
    ("softmax 8192x8192", "board/softmax 8192x8192 fp16"),
    ("layernorm 8192x4096", "board/layernorm 8192x4096 fp16"),
    ("rmsnorm 2048x4096", "board/rmsnorm 2048x4096 fp16"),
    ("rope 2x32x2048x128", "board/rope 2x32x2048x128 fp16 interleaved=False"),
    ("reduce 4096x4096", "board/reduce 4096x4096 fp16 is_max=False"),
    ("matmul 8192^3", "board/matmul 8192x8192x8192 fp16"),
    ("swiglu 4096x4096x11008", "board/swiglu_mlp 4096x4096x11008 fp16"),
    ("attention 4x32x4096x128", "board/attention 4x32x32x4096x4096x128 fp16 causal=True"),
    ("attention 2x32x2048x64", "board/attention 2x32x32x2048x2048x64 fp16 causal=True"),
)
"""One row per op, and the largest loss."""
OURS = ("triton", "cuda", "gluon")


def _over_floor(row: dict[str, Any]) -> tuple[float, float]:
    """Return the best baseline's and the better seed's time over the floor."""
    times = {name: cell["median_us"] / row["floor_us"] for name, cell in row["arms"].items()}
    ours = {name: value for name, value in times.items() if name in OURS}
    return min(value for name, value in times.items() if name not in ours), min(ours.values())


def _is_current(row: dict[str, Any]) -> bool:
    """Tell whether a row was measured on the very sources that are in the package now."""
    folder = ROOT / "src" / "kernelwright" / "seeds" / row["op"]
    now = {path.stem: digest(path.read_text())[:12] for path in folder.iterdir() if path.stem in OURS}
    return bool(row.get("sources") == now)


def board_chart() -> str:
    """Return the H200 board as bars: time over floor, the best baseline beside the better seed."""
    rows = json.loads((ROOT / "benchmarks/results/seeds_gpu.json").read_text())["rows"]
    rows = [row for row in rows if row["key"].startswith("board/")]
    board = {row["key"]: _over_floor(row) for row in rows}
    older = {row["key"] for row in rows if not _is_current(row)}
    lines = [f"{'':25} {'best baseline':31} better of our seeds"]
    for label, key in CHART:
        bars = [f"{value:4.2f} {'#' * round(8 * value)}" for value in board[key]]
        lines.append(f"{label + ' *' * (key in older):25} {bars[0]:31} {bars[1]}".rstrip())
    means = [math.exp(sum(math.log(pair[place]) for pair in board.values()) / len(board)) for place in (0, 1)]
    lines.append(f"{f'geomean of {len(board)} cases':25} {means[0]:<31.2f} {means[1]:.2f}")
    if older:
        lines.append(
            f"* and {len(older)} of all {len(board)} rows: measured with an earlier version of a seed"
        )
    return "```text\n" + "\n".join(lines) + "\n```"


def build_times() -> str:
    """Return cold build times per op and language, and what a hit in the cache costs."""
    found = json.loads((ROOT / "benchmarks/results/builds.json").read_text())
    rows = {(row["op"], row["backend"]): row for row in found["rows"]}
    languages = [
        name for name in ("cpp", "cuda", "triton", "compiled") if any(key[1] == name for key in rows)
    ]

    def cell(op: str, language: str) -> str:
        row = rows.get((op, language))
        if row is None:
            return ""
        cold, count = row["cold_s"], row["artefacts"]
        spread = f"{cold['median']:.2f} ({cold['min']:.2f} to {cold['max']:.2f})"
        return spread if count == 1 else f"{spread}, {count} kernels"

    body = [
        [f"`{op}`", *(cell(op, language) for language in languages)]
        for op in sorted({key[0] for key in rows})
    ]
    warm = ["a hit in the cache, ms"]
    for language in languages:
        hits = [row["warm_ms"]["median"] for row in rows.values() if row["backend"] == language]
        warm.append(f"{min(hits):.2f} to {max(hits):.2f}")
    load = ["load average while it ran"]
    for language in languages:
        found_loads = [
            one for row in rows.values() if row["backend"] == language for one in row["load_average"]
        ]
        load.append(f"{min(found_loads):.1f} to {max(found_loads):.1f}")
    versions = ", ".join(f"{name} {found['versions'][name]}" for name in ("torch", "triton"))
    words = f"`{found['command']}`, {found['date'][:10]}, {found['machine']}, {versions}."
    return f"{words}\n\n{table(['cold, seconds', *languages], [*body, warm, load])}"


def coverage() -> str:
    """Return, per model, the shares of its time that have a name."""
    found = json.loads((ROOT / "benchmarks/results/coverage.json").read_text())
    columns = {"op": "known op", "replaced": "of it replaced", "fusion": "fusion"}
    columns |= {"fusion_replaced": "of it replaced", "alone": "left alone", "gaps": "gaps", "rest": "rest"}

    def cells(row: dict[str, Any]) -> list[str]:
        times = [f"{row[key] / 1e3:.2f}" for key in ("total_us", "low_us", "high_us")]
        shares = [f"{round(100 * row[key], 1) + 0.0:.1f} %" if key in row else "" for key in columns]
        return [row["model"], *shares, f"{times[0]} ({times[1]} to {times[2]})", str(row["load_average"])]

    versions = ", ".join(f"{name} {found['versions'][name]}" for name in ("torch",))
    words = f"`{found['command']}`, {found['date'][:10]}, {found['machine']}, {versions}."
    head = ["model", *columns.values(), "captured, ms", "load average"]
    return f"{words}\n\n{table(head, [cells(row) for row in found['rows']])}"


def cards() -> str:
    """Return the cards of the playbook, one table per tier."""
    parts = []
    titles = dict(zip(Tier, members(Tier), strict=True))
    for tier in Tier:
        rows = [
            [
                f"[`{card.name}`](../src/kernelwright/playbook/{card.name}.md)",
                card.title,
                ", ".join(card.bottlenecks),
                ", ".join(card.backends) or "any",
                ", ".join(card.ops) or "any",
                ", ".join(card.archs) or "any",
                f"{card.gain.factors}, {card.gain.basis.value}",
                f"`{card.move}`" if card.move else "",
            ]
            for card in read_playbook()
            if card.tier is tier
        ]
        head = ["card", "what", "against", "backends", "ops", "hardware", "gain", "move"]
        name = tier.name.lower().replace("_", " ")
        parts.append(f"### Tier {int(tier)}: {name}\n\n{titles[tier][1]}\n\n{table(head, rows)}")
    return "\n\n".join(parts)


def moves() -> str:
    """Return what every move does, for which languages and against what."""
    rows = []
    for name in plugins.names("moves"):
        move = plugins.load("moves", name)
        file = f"[`{name}`](../src/kernelwright/moves/{name}.py)"
        rows.append([file, move.SUMMARY, ", ".join(move.BACKENDS), ", ".join(move.AGAINST)])
    return table(["move", "what it changes", "languages", "against"], rows)


def _effect(rows: list[dict[str, Any]]) -> str:
    """Return the best that a move did to a seed: proven, measured without proof, or refused."""
    proven = [row for row in rows if row.get("outcome") == "faster"]
    timed = [row for row in rows if "ratio" in row]
    if proven:
        best = max(proven, key=lambda row: row["interval"][0])
        low, high = best["interval"]
        size = best["case"].split()[1]
        return f"**{best['ratio']:.2f}x** ({low:.2f} to {high:.2f}), {best['backend']} {size}"
    if timed:
        best = max(timed, key=lambda row: row["ratio"])
        return f"{best['ratio']:.2f}x, {best['outcome'].replace('_', ' ')}"
    return rows[0]["status"].replace("_", " ") if rows else ""


def move_effects() -> str:
    """Return, per device, what the judge found of every move on every seed."""
    found = json.loads((ROOT / "benchmarks/results/moves.json").read_text())
    named = {
        key: ", ".join(f"`{name}`" for name in found[key])
        for key in ("certified_moves", "structural_moves", "structural_moves_of_this_judge")
    }
    values = [name for name in found["certified_moves"] if name not in found["structural_moves"]]
    now = found["structural_moves_of_this_judge"]
    parts = [
        f"{len(found['certified_moves'])} moves have a certified gain on some seed. "
        f"{len(found['structural_moves'])} of them gain by a way that changes code: {named['structural_moves']}. "
        f"The others gain by a value of `PARAMS` alone: {', '.join(f'`{name}`' for name in values) or 'none'}. "
        f"By version {found['judge']} of the judge's rules {len(now)} gain by changed code: "
        f"{named['structural_moves_of_this_judge']}."
    ]
    for device in sorted({row["device"] for row in found["rows"]}):
        mine = [row for row in found["rows"] if row["device"] == device]
        ops = sorted({row["op"] for row in mine})
        body = [
            [f"`{name}`", *(_effect([r for r in mine if (r["move"], r["op"]) == (name, op)]) for op in ops)]
            for name in sorted({row["move"] for row in mine})
        ]
        versions = ", ".join(f"{name} {mine[0]['versions'][name]}" for name in ("torch", "triton"))
        rules = ", ".join(sorted({row["judge"] for row in mine}))
        told = f"{len(mine)} rows; {versions}; rules of version {rules}."
        parts.append(f"### {device}\n\n{told}\n\n{table(['move', *ops], body)}")
    return "\n\n".join(parts)


def bottleneck_rules() -> str:
    """Return the rules of the judge of bottlenecks, by category."""
    order = list(Bottleneck)
    rows = [
        [
            rule.category.value + " *" * rule.is_limit,
            "; ".join(f"`{one.text}`" for one in rule.conditions),
            ", ".join(kind.value for kind in rule.kinds),
            f"`{rule.unless}`" if rule.unless else "",
            rule.reason,
        ]
        for rule in sorted(ALL_RULES, key=lambda rule: order.index(rule.category))
    ]
    return table(["category", "when", "devices", "not with", "why there"], rows)


def tools() -> str:
    """Return what an assistant can call, with which arguments."""
    rows = []
    for tool in TOOLS:
        arguments = [
            f"`{name}`" + ("" if info.is_required() else "?")
            for name, info in tool.arguments.model_fields.items()
        ]
        rows.append([f"`{tool.name}`", tool.description.splitlines()[0], ", ".join(arguments)])
    return table(["tool", "what it does", "arguments (? may be left out)"], rows)


def clients() -> str:
    """Return the assistants that can be told of the server, and where they keep that."""
    rows = [
        [f"`{name}`", one.title, f"`{one.where}`", f"`{one.table}`, {one.syntax.value.upper()}"]
        for name, one in CLIENTS.items()
    ]
    return table(["name", "assistant", "file", "entry under"], rows)


PARTS: dict[str, Callable[[], str]] = {
    "bottleneck rules": bottleneck_rules,
    "moves": moves,
    "tools": tools,
    "clients": clients,
    "move effects": move_effects,
    "cards": cards,
    "bottlenecks": lambda: table(["bottleneck", "meaning"], members(Bottleneck)),
    "coverage": coverage,
    "board": board_chart,
    "builds": build_times,
    "ops": ops_table,
    "help": help_text,
    "drawers": drawers,
    "problem": lambda: schema(Problem),
    "settings": lambda: fields(RunConfig),
    "exit codes": lambda: table(["code", "meaning"], members(ExitCode)),
    "status": lambda: table(["status", "meaning"], members(verdict.Status)),
    "stages": lambda: table(["stage", "what it checks"], members(verdict.Stage)),
    "stage profiles": stage_profiles,
    "profiles": lambda: table(["profile", "meaning"], members(verdict.Profile)),
    "outcomes": lambda: table(["outcome", "meaning"], members(verdict.Outcome)),
}


def generate(text: str) -> str:
    """Return a file's text with every generated part made anew."""
    pattern = re.compile(r"(<!-- generated: (.+?) -->\n).*?(<!-- end -->)", re.S)
    return pattern.sub(lambda found: f"{found[1]}{PARTS[found[2]]()}\n{found[3]}", text)


def sizes() -> str:
    """Return the line count of every module, largest first, and a total per room."""
    package = ROOT / "src" / "kernelwright"
    counts = {path: len(path.read_text().splitlines()) for path in package.rglob("*.py")}
    rooms: dict[str, int] = {}
    for path, count in counts.items():
        room = path.relative_to(package).parts[0]
        rooms[room] = rooms.get(room, 0) + count
    largest = sorted(counts.items(), key=lambda item: -item[1])[:8]
    lines = [f"{sum(counts.values())} lines in {len(counts)} modules; largest:"]
    lines += [f"  {count:5d} {path.relative_to(package)}" for path, count in largest]
    lines += [
        "by room: " + ", ".join(f"{room} {count}" for room, count in sorted(rooms.items()) if "." not in room)
    ]
    return "\n".join(lines)


def main() -> int:
    """Write, check or count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--sizes", action="store_true")
    options = parser.parse_args()
    if options.sizes:
        print(sizes())
        return 0
    drifted = []
    for name in FILES:
        path = ROOT / name
        before = path.read_text()
        after = generate(before)
        if before != after:
            drifted.append(name)
            if not options.check:
                path.write_text(after)
    if options.check and drifted:
        print(f"generated parts have drifted in {', '.join(drifted)}; run `make docs`", file=sys.stderr)
        return 1
    print(f"docs: {'rewrote ' + ', '.join(drifted) if drifted else 'up to date'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
