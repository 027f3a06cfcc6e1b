"""One run, from ranked problems to a verified splice. Every step is an event before the next begins.

1. The problems come ranked: the most end-to-end time to win first (`offering`).
2. `step` does the next thing a problem needs: judge its baselines, the faster of which holds the title; judge the
   seeds; have the strategy choose (`asking`) and the authors answer (`answering`); judge what was proposed and race it
   (`titles`); have llms look back on it (`reflecting`).
   What to do is read off the tree alone, so a run that was killed goes on where its journal ends.
3. The scheduler says whose turn it is until the budget is spent or every problem has ended; why is in the journal.
   What others submit (`inbox`) is taken in between, and what is left of it at the end.
4. What is to be put into the model passes the full profile and a confirming comparison first, and is proven against
   both baselines.
5. Winners are put into the model one by one in fresh processes, and stay only if they pay there (`splicing`). Without
   a model they are written as they are.
"""

import sys
import time
from collections.abc import Sequence
from functools import partial

from kernelwright.core.candidate import Candidate
from kernelwright.core.errors import KernelwrightError
from kernelwright.core.events import (
    Body,
    CandidateProposed,
    Decided,
    Evaluated,
    LessonLearnt,
    Noted,
    ProblemEnded,
    RunEnded,
)
from kernelwright.core.messages.model import VerifyModel, Winner
from kernelwright.core.problem import Problem
from kernelwright.core.search import nodes_of
from kernelwright.core.tree import Node, Tree
from kernelwright.core.verdict import Evaluation, Profile, Status
from kernelwright.engine import gate
from kernelwright.engine.answering import answer
from kernelwright.engine.asking import ask
from kernelwright.engine.budget import Stop, is_stuck, spent_up, verdicts_left, worn_out
from kernelwright.engine.drafting import draft, is_drafting
from kernelwright.engine.escalating import next_means
from kernelwright.engine.inbox import AT_ONCE, collect, submitted
from kernelwright.engine.knowing import starts_first
from kernelwright.engine.lessons import trap_after_failure
from kernelwright.engine.profiling import profile_due, read_counters
from kernelwright.engine.reflecting import look_back, unreflected
from kernelwright.engine.run import Run
from kernelwright.engine.scheduler import next_problem
from kernelwright.engine.service import JudgeClient
from kernelwright.engine.splicing import ROUNDS, Whole, added_one_by_one, timed, verification
from kernelwright.engine.titles import (
    audit,
    confirm,
    enthrone,
    is_audit_due,
    race,
    raise_the_bar,
)
from kernelwright.engine.winners import hand_over, winners, write_drop_in
from kernelwright.store.blobs import Blobs


def optimize(run: Run, judge: JudgeClient) -> None:
    """Carry out the run on the problems of its tree, or what is left of it."""
    try:
        search(run, judge)
        for problem in list(run.tree.problems.values()):
            started = time.monotonic()
            settle(run, judge, problem)
            finish(run, judge, problem)
            run.spent.add(problem.hash, time.monotonic() - started)
        if run.config.model is None:
            reason = hand_over(run.folder, run.tree)
        elif run.tree.problems:
            reason = verify(run)
        else:
            reason = "no region of the model is offered; nothing is spliced"
    except (
        KernelwrightError
    ) as error:  # whatever it is, it can be mended, and the run taken up where it stopped
        run.record([RunEnded(reason=str(error), failed=True)])
        raise
    run.record([RunEnded(reason=reason)])


def search(run: Run, judge: JudgeClient) -> None:
    """Take turns until every problem has ended or the budget is spent."""
    while (key := next_problem(run.tree)) is not None:
        # Baselines and seeds of one problem are judged whatever the budget says: without them nothing is known.
        if any(_is_begun(run, one) for one in run.tree.problems) and (stop := spent_up(run)):
            _end_all(run, stop)
            return
        started = time.monotonic()
        step(run, judge, run.tree.problems[key])
        run.spent.add(key, time.monotonic() - started)


def _is_begun(run: Run, key: str) -> bool:
    """Tell whether baselines and seeds are decided on."""
    undecided = any(node.decision is None and not node.candidate.parents for node in nodes_of(run.tree, key))
    return key in run.tree.best and not undecided and not seeds_left(run, run.tree.problems[key])


def _end_all(run: Run, stop: Stop) -> None:
    run.record(
        [
            ProblemEnded(problem_hash=key, rule=stop.rule, reason=stop.reason)
            for key, quest in run.tree.quests.items()
            if quest.ended is None
        ]
    )


def step(run: Run, judge: JudgeClient, problem: Problem) -> None:
    """Do the next thing a problem needs."""
    quest = run.tree.quests[problem.hash]
    if problem.hash not in run.tree.best:
        begin(run, judge, problem)
    elif first := seeds_left(run, problem):
        run.record([CandidateProposed(problem_hash=problem.hash, candidate=one) for one in first])
    elif is_audit_due(run, problem):
        audit(run, judge, problem)
    elif quest.pending and is_drafting(run, problem):
        draft(run, judge, problem, challenge)
    elif node := profile_due(run, problem):
        recorded = run.recording.profile(node) if run.recording else None
        run.record([recorded]) if recorded else read_counters(run, judge, problem, node)
    elif quest.pending:
        answer(run, judge, problem)
    elif undecided := [node for node in nodes_of(run.tree, problem.hash) if node.decision is None]:
        decide(run, judge, problem, undecided)
    elif past := unreflected(run, problem):
        look_back(run, problem, past)
    elif collect(run, problem):
        return  # what others submitted is judged with the next step
    elif not run.members or run.config.max_expansions == 0:
        _end(run, problem, Stop("seeds", "the seeds alone were asked for"))
    elif stop := worn_out(run, problem):
        _end(run, problem, stop)
    elif quest.ended is None and (words := is_stuck(run, problem)):
        run.record([next_means(run, problem, words)])
    elif run.recording is not None and run.recording.is_used_up:
        _end(run, problem, Stop("recording", "every recorded reply was given"))
    elif not ask(run, problem):
        run.record([next_means(run, problem, "the strategy has nothing left to expand")])


def begin(run: Run, judge: JudgeClient, problem: Problem) -> None:
    """Judge the baselines; the faster one holds the title."""
    if not enthrone(run, judge, problem, run.seeds.baselines(problem)):
        _end(run, problem, Stop("baseline", "no baseline was accepted"))


def seeds_left(run: Run, problem: Problem) -> list[Candidate]:
    """Return the first candidates that the tree does not hold yet: winners of similar problems, then the seeds."""
    if not run.config.seeds:
        return []
    seeds = [one for one in run.seeds.first(problem) if (problem.hash, one.hash) not in run.tree.nodes]
    return starts_first(run.tree, problem, seeds)


def decide(run: Run, judge: JudgeClient, problem: Problem, undecided: Sequence[Node]) -> None:
    """Judge the candidates nothing is decided about, one per judge at a time; race those accepted, all at once."""
    waiting = [node.candidate for node in undecided if not node.evaluations]
    if waiting:
        _judge_some(run, judge, problem, waiting)
    else:
        race(run, judge, problem, [node.evaluations[-1] for node in undecided])


def _judge_some(run: Run, judge: JudgeClient, problem: Problem, waiting: Sequence[Candidate]) -> None:
    """Have every judge give one verdict at the same time; they are journalled in the order of the tree."""
    judges = [judge, *run.judges][: verdicts_left(run)]
    for place, coming in enumerate(waiting[len(judges) :]):
        judges[place % len(judges)].prepare(problem, coming)
    beside = zip(judges[1:], waiting[1:], strict=False)
    asked = [(one, other, one.verdict_on(problem, other, Profile.KEEP)) for one, other in beside]
    failed: KernelwrightError | None = None
    try:
        challenge(run, judge, problem, waiting[0])
    except KernelwrightError as error:
        failed = error  # what the others find is not lost with it
    for one, other, verdict in asked:
        try:
            found = verdict()
        except KernelwrightError as error:  # its candidate is still waiting
            run.judges.remove(one)
            one.close()
            run.record([Noted(text=f"a judge beside the first is given up, the others go on: {error}")])
        else:
            tell_verdict(run, problem, other, found)
    if failed:
        raise failed


def challenge(run: Run, judge: JudgeClient, problem: Problem, challenger: Candidate) -> Evaluation:
    """Journal the verdict on a challenger; one that is not accepted is decided on at once."""
    if (problem.hash, challenger.hash) not in run.tree.nodes:
        run.record([CandidateProposed(problem_hash=problem.hash, candidate=challenger)])
    verdict = judge.evaluate(problem, challenger, Profile.KEEP)
    tell_verdict(run, problem, challenger, verdict)
    return verdict


def tell_verdict(run: Run, problem: Problem, challenger: Candidate, verdict: Evaluation) -> None:
    """Journal a verdict; a challenger that is not accepted is decided on at once."""
    told: list[Body] = [Evaluated(evaluation=verdict)]
    if verdict.status is not Status.ACCEPTED:
        told.append(Decided(decision=gate.rejected(verdict)))
        traps = trap_after_failure(run.tree, problem, challenger, verdict)
        told += [LessonLearnt(lesson=one) for one in traps]
    run.record(told)


def settle(run: Run, judge: JudgeClient, problem: Problem) -> None:
    """Judge what was submitted and is not decided on when the search has ended, whatever the budget says."""
    collect(run, problem, most=sys.maxsize)
    while waiting := submitted(run, problem):
        decide(run, judge, problem, waiting[:AT_ONCE])


def _end(run: Run, problem: Problem, stop: Stop) -> None:
    run.record([ProblemEnded(problem_hash=problem.hash, rule=stop.rule, reason=stop.reason)])


def finish(run: Run, judge: JudgeClient, problem: Problem) -> None:
    """Hold torch.compile against the best where that was put off, and confirm what is left."""
    if not run.tree.titles.get(problem.hash, [])[1:]:
        return
    if late := run.seeds.late_baseline(problem):
        raise_the_bar(run, judge, problem, late)
    confirm(run, judge, problem)


def verify(run: Run) -> str:
    """Put the winners into the model one by one, journal what that does, and return why the run ends."""
    groups = winners(run.tree, Blobs(run.folder / "blobs"))
    if not groups:
        return "no candidate was proven faster than the baselines; nothing is spliced"
    if _is_verified(run.tree, groups):  # by an earlier sitting
        return _installed(run, groups)
    assert run.config.model is not None
    request = VerifyModel(
        spec=run.config.model,
        options=run.config.model_options(),
        threads=run.threads,
        winners=(),
        rounds=ROUNDS,
        seed=0,
        rest=run.config.who_runs_the_rest(),
        cache_folder=str(run.cache) if run.cache else None,
    )
    left_s = run.config.budget_s - run.spent.seconds
    whole = Whole(request, run.config.model_processes, run.show, until=time.monotonic() + left_s)
    rule = partial(verification, against=run.config.against)
    added_one_by_one(groups, partial(timed, whole, groups), rule, run.record, run.tree.tried)
    return _installed(run, groups)


def _is_verified(tree: Tree, groups: Sequence[Sequence[Winner]]) -> bool:
    """Tell whether the last verification is of these very winners."""
    if tree.verified is None:
        return False
    tried = {key: one.candidate_hash for key, one in tree.tried.items()}
    stayed = {key: one.candidate_hash for key, one in tree.tried.items() if one.kept}
    is_last = stayed == tree.verified.winners if tree.verified.shipped else not stayed
    return is_last and tried == {one.problem_hash: one.candidate_hash for group in groups for one in group}


def _installed(run: Run, groups: Sequence[Sequence[Winner]]) -> str:
    """Write what was verified to pay, and return why the run ends."""
    verified = run.tree.verified
    assert verified is not None, "the winners are verified first"
    if not verified.shipped:
        return verified.reason
    stay = [winner for group in groups for winner in group if winner.problem_hash in verified.winners]
    write_drop_in(run.folder, run.tree, stay)
    return "the winners pay end to end"
