"""First drafts: where there is no kernel yet, several are asked for at once, and the first one certified ends the rest.

1. All drafts are asked for at the same time, each with a seed of its own; what they are told is the reference.
2. Each is journalled and judged as it comes.
3. When one is certified, the others are told to stop: connections are closed, programs ended, and they are journalled
   as cancelled. What has arrived and was not judged yet is cancelled too; what it cost is journalled.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait

from kernelwright.core.brief import Answer
from kernelwright.core.candidate import Candidate
from kernelwright.core.errors import LlmNotRecorded
from kernelwright.core.events import Body, CandidateProposed, ExpansionAnswered
from kernelwright.core.expansion import Expansion
from kernelwright.core.halt import Halt
from kernelwright.core.normal import known_keys
from kernelwright.core.problem import Problem
from kernelwright.core.search import nodes_of
from kernelwright.core.verdict import Evaluation, Status
from kernelwright.engine.answering import asked, exchanged, journalled, prepare
from kernelwright.engine.crew import can_draft, end_of_recording
from kernelwright.engine.run import Run
from kernelwright.engine.service import JudgeClient

GRACE_S = 1.0
"""How long a draft that was told to stop may take to say what was said to it."""
OUTRUN = "another draft was certified first"
Challenge = Callable[[Run, JudgeClient, Problem, Candidate], Evaluation]


def is_drafting(run: Run, problem: Problem) -> bool:
    """Tell whether what is pending are drafts from nothing, asked of somebody who can be told to stop."""
    pending = run.tree.quests[problem.hash].pending
    return any(not one.parents and run.members and can_draft([run.member(one)]) for one in pending)


def draft(run: Run, judge: JudgeClient, problem: Problem, challenge: Challenge) -> None:
    """Have all pending drafts written at once and judged as they come; the first one certified ends the others."""
    pending = [one for one in run.tree.quests[problem.hash].pending if not one.parents]
    if pending and _certified(run, problem, pending[0].backend):  # by an earlier sitting
        run.record([_cancelled(run, one) for one in pending])
        return
    halt = Halt()
    pool = ThreadPoolExecutor(len(pending))
    try:
        acts = [asked(run, one, 0) for one in pending]
        under_way = {pool.submit(act, halt): one for act, one in zip(acts, pending, strict=True)}
        left = dict(under_way)
        for done in _arriving(run, under_way):
            expansion, given = left.pop(done), done.result()
            end_of_recording(given.exchanges)
            if _judged(run, judge, problem, (expansion, given), challenge):
                halt.give()
                _cancel(run, left)
                return
    finally:
        halt.give()
        pool.shutdown(wait=False, cancel_futures=True)


def _arriving(run: Run, under_way: dict[Future[Answer], Expansion]) -> Iterator[Future[Answer]]:
    """Yield answers as they come; those of a recording all come at once, and are taken in the order they had."""
    if run.recording is None:
        yield from as_completed(under_way)
        return
    wait(under_way)
    yield from sorted(under_way, key=lambda one: run.recording.order(under_way[one]) if run.recording else 0)


def _judged(
    run: Run, judge: JudgeClient, problem: Problem, drafted: tuple[Expansion, Answer], challenge: Challenge
) -> bool:
    """Journal a draft and have it judged; tell whether it is certified."""
    told = journalled(run, problem, *drafted, set(known_keys(run.tree, problem.hash)))
    run.record(told)
    prepare((judge,), problem, told)
    fresh = [body.candidate for body in told if isinstance(body, CandidateProposed)]
    return any(challenge(run, judge, problem, one).status is Status.ACCEPTED for one in fresh)


def _cancel(run: Run, left: dict[Future[Answer], Expansion]) -> None:
    """Journal the drafts nobody waits for any more, with what is known of them a moment later."""
    wait(left, timeout=GRACE_S)
    told: list[Body] = []
    for one, expansion in left.items():
        if one.done() and not one.cancelled() and not _is_unknown(given := one.result()):
            told += exchanged(run, expansion, given)
        told.append(_cancelled(run, expansion))
    run.record(told)


def _is_unknown(given: Answer) -> bool:
    """Tell whether a recording says nothing of a draft, because it was given up without a word."""
    return any(one.error == LlmNotRecorded.__name__ for one in given.exchanges)


def _cancelled(run: Run, expansion: Expansion) -> ExpansionAnswered:
    return ExpansionAnswered(
        expansion=expansion, author=run.member(expansion).name, reason=OUTRUN, cancelled=True
    )


def _certified(run: Run, problem: Problem, backend: str) -> bool:
    """Tell whether a draft of the problem is certified that was asked for in the same language."""
    first: Sequence[Evaluation] = [
        verdict
        for node in nodes_of(run.tree, problem.hash)
        if node.expansion is not None and not node.candidate.parents and node.expansion.backend == backend
        for verdict in node.evaluations
    ]
    return any(verdict.status is Status.ACCEPTED for verdict in first)
