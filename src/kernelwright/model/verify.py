"""The model with winners against the model without: outputs against higher precision, and paired end-to-end times.

1. Arms: the model as it is, its captured graph, torch.compile, and the captured graph with some of the winners each.
2. Every arm is called on the same inputs from the same state; outputs and changed buffers are compared with the model
   in float64, by the measure of the framework's own error between eager and torch.compile.
3. All arms are timed in random order, there and back, round by round, on every set by its weight; on a GPU as they are
   and, where all of them can be captured, replayed from CUDA graphs. An arm that raised before is not called again.
"""

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from kernelwright.core.errors import KernelwrightError
from kernelwright.core.messages.model import ModelTimed, OutputCheck, VerifyModel, Winner
from kernelwright.hardware.detect import torch_device
from kernelwright.hardware.lock import DeviceLock
from kernelwright.model.apply import winners_of
from kernelwright.model.arguments import Arguments
from kernelwright.model.dry_run import USER_MISTAKES, said
from kernelwright.model.load import Loaded
from kernelwright.model.memory import is_out_of_memory
from kernelwright.model.outputs import Comparison, Leaves, leaves
from kernelwright.model.paired import Arms, Call, timed
from kernelwright.model.precise import Precise, State
from kernelwright.model.sizes import other_sizes
from kernelwright.model.splice import compiled_with
from kernelwright.model.tally import Tally

CHECK_SEED = 1000
RECOMPILES = 64
"""Shapes dynamo may compile one arm for."""
QUICK_BUILDS = {"cpp_cache_precompile_headers": False, "cpp.vec_isa_ok": True}
"""The code is the same; headers precompiled for the next compilation cost 20 s, the probe of instruction sets 10 s."""
Make = Callable[[int], Arguments]


def verify(loaded: Loaded, request: VerifyModel, show: Callable[[str], None]) -> ModelTimed:
    """Return raw times of all arms and how far the outputs of the spliced ones drift."""
    winners = winners_of(Path(request.folder)) if request.folder else request.winners
    subsets = request.arms or (tuple(range(len(winners))),)
    with _dynamo(2 * len(subsets) + 2), loaded.calling():
        arms = _arms(loaded, [[winners[place] for place in one] for one in subsets], request)
        show("comparing outputs")
        checks = _Checks(arms, request).all()
        modes = []
        if request.rounds:
            show("timing the model with and without the winners")
            with DeviceLock(torch_device(str(loaded.device)), show=show):
                modes = timed(arms, request)
    found = [tally.winners for tally in arms.tallies]
    sites = [[one[winner.case.hash].sites for one in found if winner.case.hash in one] for winner in winners]
    return ModelTimed(
        modes=tuple(modes),
        checks=tuple(checks),
        spliced_calls=tuple(tally.spliced for tally in arms.tallies),
        fallbacks=tuple(tally.fallbacks for tally in arms.tallies),
        sites=tuple(tuple(dict.fromkeys(place for part in parts for place in part)) for parts in sites),
        notes=tuple(arms.notes),
    )


@contextmanager
def _dynamo(arms: int) -> Iterator[None]:
    torch._dynamo.reset()
    limits = {"recompile_limit": RECOMPILES * arms, "accumulated_recompile_limit": 4 * RECOMPILES * arms}
    import torch._inductor.config as inductor

    quick = {name: value for name, value in QUICK_BUILDS.items() if hasattr(inductor, name)}
    try:
        with torch._dynamo.config.patch(**limits), inductor.patch(quick):
            yield
    finally:
        torch._dynamo.reset()


def _arms(loaded: Loaded, subsets: Sequence[Sequence[Winner]], request: VerifyModel) -> Arms:
    # A module of its own for every arm, or dynamo would serve them from one cache entry. Weights are shared.
    module, tallies = loaded.module, [Tally() for _ in subsets]
    spliced = [
        compiled_with(copy.copy(module), tuple(own), tally, request.rest)
        for own, tally in zip(subsets, tallies, strict=True)
    ]
    sized = spliced
    if request.rest != "eager":
        sized = [compiled_with(copy.copy(module), tuple(own), Tally()) for own in subsets]
    captured = compiled_with(copy.copy(module), (), Tally(), request.rest)
    compiled = torch.compile(copy.copy(module), dynamic=False) if request.with_compiled else None
    return Arms(loaded, module, captured, compiled, spliced, sized, tallies, State(module))


class _Checks:
    """Compares outputs on every set, and at other sizes."""

    def __init__(self, arms: Arms, request: VerifyModel) -> None:
        self.arms, self.request = arms, request
        self.precise: Precise | None = None
        try:
            self.precise = Precise(arms.loaded.module)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            arms.notes.append("no memory for a copy in float64: outputs are compared with the original's")

    def all(self) -> list[OutputCheck]:
        """Return the worst output of every spliced arm per way of calling the model."""
        found: list[OutputCheck] = []
        for one in self.arms.loaded.sets:
            inputs = self.request.checked_inputs
            found += self._compared(one.name, one.make, inputs, self.arms.compiled, self.arms.spliced)
            if not self.request.other_sizes:
                continue
            sizes, note = other_sizes(self.arms.loaded.module, one)
            self.arms.notes += [note] if note else []
            for size in sizes:
                try:
                    self.arms.answer(self.arms.eager, size.make(CHECK_SEED))
                except USER_MISTAKES as error:
                    self.arms.notes.append(f"{size.name}: the model does not take it: {said(error)}")
                    continue
                # torch.compile would compile anew for every size: it is asked only if eager alone is too strict.
                checks = self._compared(size.name, size.make, 1, None, self.arms.sized)
                if any(check.problem for check in checks) and self.arms.compiled is not None:
                    checks = self._compared(size.name, size.make, 1, self.arms.compiled, self.arms.sized)
                found += checks
        self.arms.state.restore()
        return found

    def _compared(
        self, name: str, make: Make, inputs: int, compiled: Call | None, calls: Sequence[Call]
    ) -> list[OutputCheck]:
        arms, is_timed = self.arms, name in {one.name for one in self.arms.loaded.sets}
        pooled = Comparison(len(arms.spliced))
        for number in range(inputs):
            # Made anew for every arm: an argument may be an object that a call changes, such as a cache.
            given = functools.partial(make, CHECK_SEED + number)
            framework = [arms.answer(arms.eager, given())]
            framework += self._compiled_answer(compiled, given())
            spliced = [self._spliced_answer(call, given()) for call in calls]
            for place, one in enumerate(spliced):
                if isinstance(one, str):
                    pooled.problems[place].setdefault("call", one)
                    if is_timed:
                        self._leave_out(place, one)
            alive = [one if isinstance(one, dict) else framework[0] for one in spliced]
            pooled.add(self._exact(given(), framework[0]), framework, alive)
        elements = sum(tensor.numel() for tensor in make(CHECK_SEED).tensors())
        found = []
        for place in range(len(arms.spliced)):
            worst = pooled.worst(place)
            found.append(
                OutputCheck(arm=place, inputs=name, elements=elements, output=worst.output, error=worst.error,
                            own_error=worst.own_error, ratio=worst.ratio, allowed=worst.allowed,
                            problem=worst.problem)
            )  # fmt: skip
        return found

    def _spliced_answer(self, call: Call, given: Arguments) -> Leaves | str:
        """Return an arm's outputs, or what it raises instead."""
        try:
            return self.arms.answer(call, given)
        except USER_MISTAKES as error:
            cause = getattr(error, "inner_exception", None)
            if isinstance(cause, KernelwrightError):  # an artefact that was exchanged, not a wrong answer
                raise cause from error
            return f"raises {said(error)}"

    def _leave_out(self, place: int, words: str) -> None:
        """Have an arm that raises not be timed, and say so."""
        self.arms.raising.add(place)
        note = (
            f"where the model {words} with winners, nothing is timed: the captured graph's times stand there"
        )
        if note not in self.arms.notes:
            self.arms.notes.append(note)

    def _compiled_answer(self, compiled: Call | None, given: Arguments) -> list[Leaves]:
        if compiled is None or self.arms.compiled is None:
            return []
        try:
            return [self.arms.answer(compiled, given)]
        except USER_MISTAKES as error:
            self.arms.compiled = None
            self.arms.notes.append(f"torch.compile fails on this model: {said(error)}")
            return []

    def _exact(self, given: Arguments, eager: Leaves) -> Leaves:
        """Return the truth; the original's own answer where there is no float64 for it."""
        if self.precise is None:
            return eager
        try:
            answer, changed = self.precise.call(given)
        except USER_MISTAKES as error:
            self.precise = None
            self.arms.notes.append(
                f"the model does not run in float64 ({said(error)}): the original's is compared"
            )
            return eager
        return leaves(answer) | {f"buffer {name}": value for name, value in changed.items()}
