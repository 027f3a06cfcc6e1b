"""The sentence at the top: what was proven, or that nothing was."""

from collections.abc import Sequence

from kernelwright.core.events import ModelVerified
from kernelwright.report.model import EndToEnd, Interval, ProblemFact


def times(found: Interval) -> str:
    """Return a ratio with its interval."""
    return f"×{found.ratio:.3f}\u00a0[{found.low:.3f},\u00a0{found.high:.3f}]"


def end_to_end(found: ModelVerified) -> EndToEnd:
    """Return what was proven of the whole model."""
    compiled = None
    if found.compiled_ratio and found.compiled_ci_low and found.compiled_ci_high:
        compiled = Interval(
            ratio=found.compiled_ratio, low=found.compiled_ci_low, high=found.compiled_ci_high
        )
    return EndToEnd(
        over_graph=Interval(ratio=found.ratio, low=found.ci_low, high=found.ci_high),
        over_eager=Interval(ratio=found.eager_ratio, low=found.eager_ci_low, high=found.eager_ci_high),
        over_compiled=compiled,
        is_shipped=found.shipped,
        drift=found.drift,
        fallbacks=found.fallbacks,
        mode=found.mode,
        reason=found.reason,
        notes=found.notes,
    )


def headline(model: str, whole: EndToEnd | None, problems: Sequence[ProblemFact], is_ended: bool) -> str:
    """Return the run in one sentence."""
    if not is_ended:
        return f"The run has not ended; {_unfinished(problems)}."
    if whole is not None and whole.is_shipped:
        return _shipped(model, whole, sum(one.is_installed for one in problems))
    if whole is not None:
        return (
            f"Nothing is installed: {whole.reason} (with the winners in place the model ran at "
            f"{times(whole.over_eager)} over eager and {_over_compiled(whole)})."
        )
    return _alone(model, problems)


def _unfinished(problems: Sequence[ProblemFact]) -> str:
    won = [one for one in problems if one.is_won]
    if not won:
        return "nothing is proven faster so far, and nothing is installed"
    return f"proven faster so far, each by itself: {_won(won)}"


def _shipped(model: str, whole: EndToEnd, kernels: int) -> str:
    count = "1 certified kernel" if kernels == 1 else f"{kernels} certified kernels"
    eager, compiled = whole.over_eager, whole.over_compiled
    said = f"With {count} in place, {model or 'the model'} is {_word(eager)} eager, {times(eager)}"
    if compiled is None:
        return f"{said}; torch.compile was not timed."
    joined = "and" if _word(compiled) == _word(eager) else "but"
    return f"{said}, {joined} {_word(compiled)} torch.compile, {times(compiled)}."


def _over_compiled(whole: EndToEnd) -> str:
    if whole.over_compiled is None:
        return "was not timed under torch.compile"
    return f"{times(whole.over_compiled)} over torch.compile"


def _word(found: Interval) -> str:
    if found.low > 1:
        return "faster than"
    return "slower than" if found.high < 1 else "within the noise of"


def _alone(model: str, problems: Sequence[ProblemFact]) -> str:
    """Return what is known of the problems where the whole model was not verified."""
    if not problems:
        return "No region was worked on, so nothing is installed."
    won = [one for one in problems if one.is_won]
    if not won:
        what = problems[0].name if len(problems) == 1 else f"the {len(problems)} problems"
        found = f"Nothing was proven faster than the baselines on {what}"
        return f"{found}, so nothing is installed." if model else f"{found}."
    if not model:
        return f"Proven faster: {_won(won)}."
    return f"Proven faster, each by itself: {_won(won)}; the whole model was not verified, so nothing is installed."


def _won(problems: Sequence[ProblemFact]) -> str:
    return "; ".join(f"{one.name} {_gain(one)} over {one.baseline}" for one in problems)


def _gain(one: ProblemFact) -> str:
    if one.gain is not None:
        return times(one.gain)
    return f"about ×{one.chained:.3f}" if one.chained else "by an unknown factor"
