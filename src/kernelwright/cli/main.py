"""`kernelwright`: the verbs, and the outermost frame that turns every failure into one line and an exit code."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from kernelwright.cli import (
    apply,
    backends,
    brief,
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
    resume,
    show,
    submit,
    tune,
    verify,
    version,
)
from kernelwright.cli.hints import named_home, pasteable
from kernelwright.cli.mcp import verbs as mcp
from kernelwright.cli.screen import ExitCode, err, kernelwright_home
from kernelwright.core.environment import close_off
from kernelwright.core.errors import BadInput, KernelwrightError

INTERRUPTED = {
    "optimize": "interrupted; everything journalled is safe, `kernelwright resume last` goes on",
    "resume": "interrupted; everything journalled is safe, `kernelwright resume last` goes on",
    "judge": "interrupted before the verdict; nothing is decided",
    "profile": "interrupted before the ranking; `kernelwright extract` names the regions without timing them",
    "replay": "interrupted; the run that was to be repeated is as it was",
    "rejudge": "interrupted; the run they won is as it was, `kernelwright resume last` judges the rest of them",
    "submit": "interrupted; what was submitted stays in the run's inbox",
    "tune": "interrupted; what was tuned before is as it was",
    "verify": "interrupted before the verdict; the kernels and the model are as they were",
}
"""What Ctrl-C means to a verb that has something to lose."""
GOES_ON = "kernelwright resume last"
NOTHING_BEGUN = "interrupted before the run began; nothing is lost, give the command again"


def build_app() -> typer.Typer:
    """Return the command line with all its verbs."""
    app = typer.Typer(
        name="kernelwright",
        help="Finds where a PyTorch model spends its time and rewrites the kernels that matter.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
        rich_markup_mode=None,
    )

    @app.callback()
    def options(
        debug: Annotated[
            bool, typer.Option("--debug", help="Show tracebacks instead of one-line errors.")
        ] = False,
    ) -> None:
        """Finds where a PyTorch model spends its time and rewrites the kernels that matter."""

    app.command("optimize")(optimize.optimize)
    app.command("resume")(resume.resume)
    app.command("brief")(brief.brief)
    app.command("submit")(submit.submit)
    app.command("rejudge")(rejudge.rejudge)
    app.command("replay")(replay.replay)
    app.command("profile")(profile.profile)
    app.command("extract")(extract.extract)
    app.command("apply")(apply.apply)
    app.command("verify")(verify.verify)
    app.command("tune")(tune.tune)
    app.command("new")(new.new)
    app.command("judge")(judge.judge)
    app.command("counters")(counters.counters)
    app.command("doctor")(doctor.doctor)
    app.command("show")(show.show)
    app.command("report")(report.report)
    app.add_typer(journal.app(), name="journal")
    app.add_typer(export.app(), name="export")
    app.add_typer(mcp.app(), name="mcp")
    app.command("ops")(ops.ops)
    app.command("backends")(backends.backends)
    app.command("playbook")(playbook.playbook)
    app.add_typer(lessons.app(), name="lessons")
    app.command("version")(version.version)
    return app


def main() -> None:
    """Run the command line and exit."""
    debug, began = "--debug" in sys.argv[1:], datetime.now(UTC)
    close_off(die_with_parent=False)  # the engine holds the keys
    try:
        code = build_app()(standalone_mode=False)
        if code == ExitCode.INTERRUPTED:  # newer typer answers Ctrl-C itself, with the code and no word
            code = _interrupted(sys.argv[1:], began)
    except KernelwrightError as error:
        kind = ExitCode.USAGE if isinstance(error, BadInput) else ExitCode.MISTAKE
        # What another process found comes with where it was found there.
        told = "\n".join((f"error: {error}", *getattr(error, "__notes__", ())))
        line = pasteable(told, named_home(sys.argv[1:]), build_app())
        code = _failed(line, kind, debug, getattr(getattr(error, "fault", None), "trace", ""))
    except (KeyboardInterrupt, typer.Abort):
        code = _interrupted(sys.argv[1:], began)
    except Exception as error:  # noqa: BLE001 - the CLI's outermost frame
        # The usage error is click's, which newer typer vendors and older typer imports: the one name both share.
        if isinstance(error, typer.BadParameter.__bases__):
            error.show()  # type: ignore[attr-defined]
            sys.exit(ExitCode.USAGE)
        code = _failed(f"bug: {type(error).__name__}: {error} (--debug shows where)", ExitCode.BUG, debug)
    sys.exit(int(code or 0))


def _interrupted(words: list[str], began: datetime | None = None) -> ExitCode:
    """Say what an interrupted verb leaves behind; told when it began, whether that is a run."""
    verb = next((word for word in words if not word.startswith("-")), "")
    if verb == "optimize" and began is not None and not _has_run(words, began):
        return _failed(NOTHING_BEGUN, ExitCode.INTERRUPTED, False)
    line = INTERRUPTED.get(verb, "interrupted").replace(GOES_ON, _goes_on(verb, words))
    return _failed(line, ExitCode.INTERRUPTED, False)


def _has_run(words: list[str], began: datetime) -> bool:
    """Tell whether a run was begun since then: else the last one is another, and not to be gone on with."""
    from kernelwright.store.locate import new_run_id, runs_folder

    named, first = named_home(words), new_run_id(began, bytes(3))
    runs = runs_folder(kernelwright_home(Path(named) if named else None))
    return runs.is_dir() and any(folder.name >= first for folder in runs.iterdir())


def _goes_on(verb: str, words: list[str]) -> str:
    """Return the command that goes on: with the run and the home that were named, and as trusted as it was."""
    import argparse
    import shlex

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--home", nargs="?")
    parser.add_argument("--trust", action="store_true")
    known, rest = parser.parse_known_args(words)
    named = [word for word in rest if not word.startswith("-") and word != verb]
    run = named[0] if verb == "resume" and named else "last"
    home = ["--home", known.home] if known.home else []
    trust = (
        ["--trust"] if known.trust and verb == "resume" else []
    )  # of another verb, the last run is one's own
    return shlex.join(["kernelwright", "resume", run, *trust, *home])


def _failed(line: str, code: ExitCode, debug: bool, trace: str = "") -> ExitCode:
    console = err()
    if debug:
        import traceback

        console.print(traceback.format_exc(), markup=False)
        if trace:
            console.print(f"In the other process:\n{trace}", markup=False)
    console.print(line, style="red", markup=False)
    return code
