"""Which winner breaks the model: smallest sets of winners that fail, found by leaving others out."""

from collections.abc import Callable, Sequence

from kernelwright.core.errors import ServiceDied
from kernelwright.core.frozen import Frozen
from kernelwright.core.messages.model import ModelTimed, OutputCheck, VerifyModel
from kernelwright.engine.service import Show, ask_model
from kernelwright.engine.splicing import CHECKED_INPUTS, broken

Places = tuple[int, ...]
Fails = Callable[[Sequence[Places]], list[bool]]
"""Tells of several sets of winners at once which of them break the model."""


class Culprit(Frozen):
    """Winners that break the model, together if there are several; without one of them it holds."""

    kernels: tuple[str, ...]
    """Language and case of each."""
    candidates: tuple[str, ...]
    """Their candidate hashes."""
    sites: tuple[tuple[str, ...], ...]
    """Per kernel the files and lines of the model it serves."""
    inputs: str
    """The smallest inputs on which it shows."""
    output: str
    """The output that is worst there."""
    ratio: float
    """Its error over the framework's own; 1e30 for what is wrong altogether."""
    problem: str
    """What is wrong with it."""


def smallest_failing(places: Places, fails: Fails) -> Places:
    """Return a failing set from which nothing can be left out, given one that fails (delta debugging)."""
    parts = 2
    while len(places) > 1:
        parts = min(parts, len(places))
        size = -(-len(places) // parts)
        pieces = [places[start : start + size] for start in range(0, len(places), size)]
        others = [tuple(one for one in places if one not in piece) for piece in pieces] if parts > 2 else []
        tries = [*pieces, *others]
        found = next((one for one, failed in zip(tries, fails(tries), strict=True) if failed), None)
        if found is None and parts >= len(places):
            break
        parts = 2 * parts if found is None else max(2, parts - 1) if found in others else 2
        places = places if found is None else found
    return places


def all_failing(places: Places, fails: Fails) -> list[Places]:
    """Return disjoint smallest failing sets, until what is left holds."""
    found: list[Places] = []
    while places and fails([places])[0]:
        one = smallest_failing(places, fails)
        found.append(one)
        places = tuple(place for place in places if place not in one)
    return found


class Diagnosis:
    """Asks model processes about sets of winners, and remembers what they said."""

    def __init__(self, request: VerifyModel, labels: Sequence[tuple[str, str]], show: Show) -> None:
        self.request = request.model_copy(
            update={"rounds": 0, "checked_inputs": CHECKED_INPUTS, "other_sizes": True}
        )
        self.labels, self.show = labels, show
        self.known: dict[Places, OutputCheck | None] = {}
        self.sites: tuple[tuple[str, ...], ...] = ()

    def culprits(self) -> list[Culprit]:
        """Return the winners that break the model; none if it holds with all of them."""
        return [self._culprit(one) for one in all_failing(tuple(range(len(self.labels))), self.fails)]

    def fails(self, tries: Sequence[Places]) -> list[bool]:
        """Tell which sets of winners break the model."""
        if fresh := [one for one in dict.fromkeys(tries) if one not in self.known]:
            self.show(f"looking at {len(fresh)} sets of winners")
            self._ask(fresh)
        return [self.known[one] is not None for one in tries]

    def _ask(self, tries: Sequence[Places]) -> None:
        try:
            answer = ask_model(self.request.model_copy(update={"arms": tuple(tries)}), self.show)
        except ServiceDied as died:
            if len(tries) > 1:  # one of them took the process down with it
                for one in tries:
                    self._ask([one])
                return
            words = f"the process ended: {died}"[:300]
            self.known[tries[0]] = OutputCheck(
                arm=0, inputs="any", elements=0, output="none", error=0, own_error=0, ratio=1e30, allowed=1,
                problem=words,
            )  # fmt: skip
            return
        assert isinstance(answer, ModelTimed), "a verification was asked for"
        self.sites = answer.sites
        for place, one in enumerate(tries):
            self.known[one] = broken([answer], place)

    def _culprit(self, places: Places) -> Culprit:
        check = self.known[places]
        assert check is not None, "only what fails is a culprit"
        return Culprit(
            kernels=tuple(self.labels[place][0] for place in places),
            candidates=tuple(self.labels[place][1] for place in places),
            sites=tuple(self.sites[place] if self.sites else () for place in places),
            inputs=check.inputs,
            output=check.output,
            ratio=check.ratio,
            problem=check.problem,
        )
