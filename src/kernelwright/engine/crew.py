"""The crew: who the authors of a run are, and how several of them are asked at the same time.

1. The strategy says what to expand; `spread` gives every author another parent or another diagnosis, and its memory.
2. All of a round are asked at once, each in a thread of its own: an llm's time is spent waiting for a server.
3. What they say is journalled in the order in which they were asked, all of it at once, so that a run that is killed or
   replayed asks the same again.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

from kernelwright.core import plugins
from kernelwright.core.config import RunConfig
from kernelwright.core.errors import LlmNotRecorded, ReplayEnded
from kernelwright.core.exchange import Exchange
from kernelwright.core.expansion import Expansion, Memory
from kernelwright.core.halt import Halt
from kernelwright.core.ports import Agent, Stoppable
from kernelwright.engine.run import Member

T = TypeVar("T")
NOBODY = "none"
LLM = "llm"
WAKE_SECONDS = 0.5
SHARED = 2
"""Authors of an llm's crew: two that share conclusions were worth 1.6 to 2.0 of one at equal cost, four no more."""
MODES = (Memory.BOTH, Memory.BOTH, Memory.SIBLINGS, Memory.CLEAN)
"""What each author of a crew is told, by its place: two share conclusions, further ones are there to differ."""


def crew_of(config: RunConfig) -> tuple[Member, ...]:
    """Return who proposes candidates; `none` leaves it at the seeds."""
    names = tuple(name for name in (config.author, *config.beside) if name != NOBODY)
    if not names:
        return ()
    agents = {name: _author(name) for name in dict.fromkeys(names)}
    return tuple(Member(place, name, agents[name]) for place, name in enumerate(places(config, names)))


def can_draft(crew: Iterable[Member]) -> bool:
    """Tell whether somebody of a crew can begin with nothing but the reference, and can be told to stop."""
    return any(isinstance(member.agent, Stoppable) for member in crew)


def places(config: RunConfig, names: Sequence[str]) -> list[str]:
    """Return the name of every author of the crew, in order."""
    usual = SHARED if len(names) == 1 and names[0].partition(":")[0] == LLM else len(names)
    count = config.crew or usual
    return [names[place % len(names)] for place in range(count)]


def _author(name: str) -> Agent:
    kind, _, detail = name.partition(":")
    author: Agent = plugins.load("agents", kind).author(detail)
    if (check := getattr(author, "check", None)) is not None:
        check()  # a key that is refused is told now, not after the baselines
    return author


def spread(
    wanted: Sequence[Expansion], pending: Sequence[Expansion], asked: int, crew: int
) -> list[Expansion]:
    """Return expansions as a crew answers them: nobody is given what somebody else has, two share their memory."""
    if crew == 1:
        return [*wanted]
    taken = [(one.parents, one.diagnosis) for one in pending]
    found: list[Expansion] = []
    for place, one in enumerate(wanted):
        diagnosis = one.diagnosis
        while (one.parents, diagnosis) in taken:
            diagnosis += 1
        taken.append((one.parents, diagnosis))
        worker = (asked + place) % crew
        changes: dict[str, object] = {"diagnosis": diagnosis, "worker": worker}
        if one.parents and one.memory in (Memory.INHERIT, Memory.BOTH):
            changes["memory"] = MODES[worker % len(MODES)]
        found.append(one.model_copy(update=changes))
    return found


def together(acts: Sequence[Callable[[Halt], T]]) -> list[T]:
    """Return what several acts come to, each in a thread of its own; an interruption ends all of them."""
    halt = Halt()
    if len(acts) < 2:
        return [act(halt) for act in acts]
    with ThreadPoolExecutor(len(acts)) as pool:
        try:
            under_way = [pool.submit(act, halt) for act in acts]
            return [_awaited(one) for one in under_way]
        finally:
            halt.give()  # leaving the pool waits for its threads; whoever has ended does not mind


def _awaited(act: Future[T]) -> T:
    """Wait in short steps: an interruption that another thread was woken for does not wake this one."""
    while not wait([act], WAKE_SECONDS).done:
        pass
    return act.result()


def stoppable(member: Member, halt: Halt) -> Agent:
    """Return an author whose questions end when the word is given, if it can be told."""
    return member.agent.until(halt) if isinstance(member.agent, Stoppable) else member.agent


def end_of_recording(exchanges: Iterable[Exchange]) -> None:
    """Raise if a recorded llm was asked what nobody recorded."""
    for one in exchanges:
        if one.error == LlmNotRecorded.__name__:
            raise ReplayEnded(one.failure)
