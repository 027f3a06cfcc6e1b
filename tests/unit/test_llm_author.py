"""The author behind an llm: real prompts over a real wire, strict answers, and everything said is handed out."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.agents import llm as agent
from kernelwright.core import errors
from kernelwright.core.brief import Answer, Attempt, Brief
from kernelwright.core.candidate import Author, ParamChoice
from kernelwright.core.events import CandidateProposed
from kernelwright.core.exchange import Exchange, Totals, past_limit, totals
from kernelwright.core.foreign import fenced
from kernelwright.core.frozen import digest
from kernelwright.core.lesson import Lesson
from kernelwright.core.normal import key_of
from kernelwright.core.verdict import Screening, Stage, Status
from kernelwright.llm.conversation import BadReply
from kernelwright.llm.edits import Edit, apply_edits
from kernelwright.llm.facts import Length, facts_of
from kernelwright.llm.ledger import Price, Prices, cost_of, read_prices
from kernelwright.llm.questions import Reply
from kernelwright.llm.spec import parse_spec
from kernelwright.llm.templates import fill, render
from kernelwright.testing.recorded_run import RecordedRun, settings
from tests.unit.landscapes import GRID, SOURCE, valley
from tests.unit.llm_servers import MODEL, Say, error, serving

pytest.importorskip("pydantic_ai")
KEY = "planted-key-3b1f9c0d7e"
BETTER = SOURCE.replace("int kernel_fn();", "int kernel_fn() { return 1; }")
PROTOCOLS = ("openai", "anthropic")


def brief_of(make, **changes) -> Brief:
    problem = make.problem()
    parent = make.candidate(
        SOURCE, choices=(ParamChoice(values={name: one[0] for name, one in GRID.items()}),)
    )
    fields = {
        "problem": problem,
        "parents": (parent,),
        "evaluations": (make.evaluation(parent, problem),),
        "contract": "rmsnorm over rows. Language cpp: C ABI.",
        "cards": ("# vectorise\nLoad wide.", "# unroll\nTwice.", "# third card"),
        "diagnoses": ("memory latency: loads wait", "compute: busy"),
        "diagnosis": 1,
        "seed": 11,
        "time_limit_s": 20.0,
    }
    return Brief(**(fields | changes))


def asked(monkeypatch, make, *answers: Say, protocol: str = "openai", options: str = "", **changes):
    """Return the answer of the author behind a scripted server, and the server."""
    monkeypatch.setenv("KERNELWRIGHT_LLM_KEY", KEY)
    with serving(protocol, *answers) as there:
        answer = agent.author(there.spec + options).propose(brief_of(make, **changes))
    return answer, there


def said(value: dict) -> Say:
    return Say(json.dumps(value))


def prompt_of(there, place: int = 0) -> str:
    """Return everything one request told the llm."""
    found = there.asked[place]
    system = found.get("system", "")
    texts = [system if isinstance(system, str) else json.dumps(system)]
    for message in found["messages"]:
        content = message["content"]
        texts.append(content if isinstance(content, str) else "".join(part["text"] for part in content))
    return "\n".join(texts)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_whole_file_becomes_a_proposal_with_its_exchange(monkeypatch, make, protocol):
    reply = said({"note": "returns at once", "source": BETTER})
    answer, there = asked(monkeypatch, make, reply, protocol=protocol, options=",temperature=0.5")
    (proposal,) = answer.proposals
    assert (proposal.source, proposal.backend, proposal.note) == (BETTER, "cpp", "returns at once")
    assert proposal.author == Author(name="llm", detail="test-model")
    (exchange,) = answer.exchanges
    assert (exchange.role, exchange.model, exchange.temperature) == ("writer", MODEL[protocol], 0.5)
    assert exchange.seed == (11 if protocol == "openai" else None)
    assert (exchange.tokens_in, exchange.tokens_out, exchange.cost) == (120, 30, None)
    texts = {digest(text): text for text in answer.texts}
    assert texts[exchange.reply_hash] == reply.text
    for part in (SOURCE.strip(), "rmsnorm over rows", "Load wide.", "2. compute: busy (work on this one)"):
        assert part in texts[exchange.prompt_hash] and part in prompt_of(there)
    assert Answer.model_validate_json(answer.model_dump_json()) == answer


def test_edits_are_applied_to_the_first_parent(monkeypatch, make):
    edit = {"search": "int kernel_fn();", "replace": "int kernel_fn() { return 1; }"}
    answer, _ = asked(monkeypatch, make, Say(f"```json\n{json.dumps({'note': 'n', 'edits': [edit]})}\n```"))
    assert [one.source for one in answer.proposals] == [BETTER]


BAD = {
    "no JSON": (Say("I would rather not"), "no JSON object"),
    "both": (said({"note": "n", "source": "x", "edits": [{"search": "a", "replace": "b"}]}), "either"),
    "neither": (said({"note": "n"}), "either `source` or `edits`"),
    "unknown field": (said({"note": "n", "source": "x", "verdict": "fast"}), "verdict"),
    "no match": (said({"note": "n", "edits": [{"search": "zzz", "replace": ""}]}), "matches 0 times"),
    "two matches": (said({"note": "n", "edits": [{"search": "kernel", "replace": ""}]}), "matches 2 times"),
    "unchanged": (said({"note": "n", "source": SOURCE}), "judged before"),
    "cut": (Say('{"note": "n", "source": "in', cut=True), "token limit"),
    "empty": (Say(""), "no JSON object"),
    "surrogate": (Say('{"note": "n", "source": "\\ud800"}'), "Invalid JSON"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_answer_is_told_back_once_and_the_second_one_counts(monkeypatch, make, name):
    bad, complaint = BAD[name]
    answer, there = asked(monkeypatch, make, bad, said({"note": "n", "source": BETTER}))
    assert [one.source for one in answer.proposals] == [BETTER]
    assert complaint in there.asked[1]["messages"][-1]["content"]
    assert complaint in answer.exchanges[0].failure and answer.exchanges[1].failure == ""
    assert len(answer.texts) == 4


def test_two_bad_answers_are_no_proposal_and_there_is_no_third_question(monkeypatch, make):
    answer, there = asked(monkeypatch, make, *[Say("no")] * 3)
    assert (answer.proposals, len(there.asked)) == ((), 2)
    assert "gave no usable answer twice: it is no JSON object" in answer.reason


FAILURES = {
    "refused the key": [error(401, f"bad key {KEY}", "invalid_api_key")],
    "serves no model 'test-model'": [error(404, "no such model", "model_not_found")],
    "failed 2 times: status 500": [error(500, f"oops {KEY}")] * 2,
    "asked to wait 2 times, the last time for 0 s": [error(429, "later", "rate_limit_error", Retry_After="0")]
    * 2,
    "gave no answer within 0.2 s": [Say("late", delay_s=0.4)],
    "cannot read a prompt of this length": [error(400, "maximum context length")] * 3,
}


@pytest.mark.parametrize("words", FAILURES)
def test_a_failing_server_is_a_reason_and_never_an_exception(monkeypatch, make, words):
    monkeypatch.setattr("kernelwright.llm.providers.FIRST_WAIT_S", 0.0)
    options = ",attempts=1,timeout=0.2" if "0.2" in words else ",attempts=2"
    answer, _ = asked(monkeypatch, make, *FAILURES[words], options=options)
    assert answer.proposals == () and words in answer.reason
    assert answer.exchanges[-1].failure == answer.reason and answer.exchanges[-1].reply_hash is None
    assert KEY not in answer.model_dump_json()


def test_a_prompt_that_is_too_long_is_put_shorter(monkeypatch, make):
    long = error(400, "maximum context length is 8", "context_length_exceeded")
    answer, there = asked(monkeypatch, make, long, long, said({"note": "n", "source": BETTER}))
    assert [one.source for one in answer.proposals] == [BETTER]
    full, short, bare = (prompt_of(there, place) for place in range(3))
    assert "# third card" in full and "# third card" not in short
    assert "Load wide." in short and "Load wide." not in bare and SOURCE.strip() in bare
    assert len(full) > len(short) > len(bare)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_key_is_in_no_prompt_exchange_text_or_reason(monkeypatch, make, protocol):
    answer, there = asked(
        monkeypatch,
        make,
        Say(f"your key is {KEY}"),
        Say(f'{{"note": "{KEY}", "source": "{KEY}"}}'),
        protocol=protocol,
        hint=f"the key is {KEY}",
    )
    assert KEY in json.dumps(there.headers_seen)
    assert KEY not in json.dumps(there.asked) and KEY not in answer.model_dump_json()
    assert answer.proposals[0].source == "<secret>"


def test_values_alone_are_chosen_from_those_listed(monkeypatch, make):
    sets = [{"UNROLL": 8, "BLOCK": 128}, {"two_pass": True}, {"BLOCK": 128, "UNROLL": 8}]
    brief = brief_of(make)
    looks = tuple(
        Screening(
            candidate_hash=brief.parents[0].hash,
            problem_hash=brief.problem.hash,
            values={"UNROLL": unroll},
            case_hash=brief.problem.cases[0].hash,
            status=Status.ACCEPTED if time else Status.WRONG,
            latency_us=time,
        )
        for unroll, time in ((4, 12.5), (2, None), (1, 3.25))
    )
    reply = said({"note": "n", "sets": sets})
    answer, there = asked(monkeypatch, make, reply, options=",mode=params", screenings=looks)
    assert [one.choices[-1].values for one in answer.proposals] == [
        {"UNROLL": 8, "BLOCK": 128, "two_pass": False},
        {"UNROLL": 1, "BLOCK": 32, "two_pass": True},
    ]
    assert {one.source for one in answer.proposals} == {SOURCE}
    assert "You write no code" in prompt_of(there)
    told = [line for line in prompt_of(there).splitlines() if line.startswith("rmsnorm 8x64 fp16: {")]
    ends = ["{'UNROLL': 1}: about 3.25 us", "{'UNROLL': 4}: about 12.5 us", "{'UNROLL': 2}: wrong"]
    assert [line.split(": ", 1)[1] for line in told] == ends


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"UNROLL": 3}, "UNROLL cannot be 3"),
        ({"UNROLL": True}, "UNROLL cannot be True"),
        ({"warps": 4}, "no parameter 'warps'"),
        ({}, "judged before"),
    ],
)
def test_values_that_are_not_listed_are_refused(monkeypatch, make, values, complaint):
    bad = said({"note": "n", "sets": [values]})
    answer, _ = asked(monkeypatch, make, bad, bad, options=",mode=params")
    assert complaint in answer.reason
    code = said({"note": "n", "source": BETTER})
    answer, _ = asked(monkeypatch, make, code, code, options=",mode=params")
    assert answer.proposals == () and "source" in answer.reason


def test_what_the_tree_holds_is_no_proposal(monkeypatch, make):
    known = key_of(make.candidate(BETTER, choices=(ParamChoice(values={n: v[0] for n, v in GRID.items()}),)))
    again = said({"note": "n", "source": BETTER})
    answer, _ = asked(monkeypatch, make, again, again, known=(known,))
    assert answer.proposals == () and "judged before" in answer.reason


def test_a_draft_without_a_parent_names_its_language(monkeypatch, make):
    whole = {"note": "n", "source": BETTER}
    answer, there = asked(
        monkeypatch, make, said(whole), said({**whole, "backend": "cpp"}), parents=(), evaluations=()
    )
    assert [one.backend for one in answer.proposals] == ["cpp"]
    assert "Draft a first kernel" in prompt_of(there)
    assert "name the language" in answer.exchanges[0].failure


def test_check_tells_a_refused_key_by_name_before_a_run(monkeypatch):
    monkeypatch.setenv("KERNELWRIGHT_LLM_KEY", KEY)
    with serving("openai", Say("ready"), error(401, "bad key", "invalid_api_key")) as there:
        author = agent.author(there.spec)
        author.check()
        with pytest.raises(errors.LlmKeyRefused, match="KERNELWRIGHT_LLM_KEY"):
            author.check()


# What the prompt says


def test_facts_name_the_task_by_what_the_brief_holds(make):
    plain = brief_of(make)
    failed = make.evaluation(plain.parents[0], plain.problem, failed=Stage.SMOKE)
    second = make.candidate("int other();")
    assert "Improve the parent" in facts_of(plain, Length.FULL)
    debugged = facts_of(brief_of(make, evaluations=(failed,)), Length.FULL)
    assert "Debug the parent" in debugged and "out differs by 3 ulp" in debugged
    fused = facts_of(brief_of(make, parents=(*plain.parents, second)), Length.FULL)
    assert "Fuse the parents" in fused and "int other();" in fused


def test_facts_attribute_attempts_and_cite_lessons(make):
    attempt = Attempt(
        candidate_hash="ab" * 32,
        relation="sibling",
        author=Author(name="mover", detail="unroll"),
        note="unrolled\n\n twice",
        status=Status.WRONG,
        reason="out differs",
        change="-a\n+b",
    )
    lesson = Lesson(claim="Do not unroll.", op="rmsnorm", ratio=0.8, evaluations=("e",))
    brief = brief_of(make, attempts=(attempt,), lessons=(lesson,))
    full = facts_of(brief, Length.FULL)
    assert "- sibling abababab by mover unroll: unrolled twice: wrong. out differs" in full and "+b" in full
    assert "- Do not unroll. (rmsnorm; 0.80x)" in full
    assert "+b" not in facts_of(brief, Length.SHORT) and "unrolled" not in facts_of(brief, Length.BARE)


def test_a_template_refuses_a_name_too_many_and_a_name_too_few():
    with pytest.raises(ValueError, match="facts"):
        render("writer", {"schema": "s"})
    with pytest.raises(ValueError, match="colour"):
        render("writer", {"schema": "s", "facts": "f", "colour": "red"})
    assert fill("{{a}}-{{b}}", {"a": "{{b}}", "b": "x"}) == "{{b}}-x"


@given(st.text(alphabet="`a\n", max_size=40))
def test_nothing_inside_a_fence_closes_it(text):
    shown = fenced(text)
    ticks = shown.split("\n", 1)[0]
    assert ticks not in shown[len(ticks) : -len(ticks)] and shown.endswith(f"\n{ticks}")


@given(
    st.text(alphabet="ab", max_size=12), st.text(alphabet="ab", min_size=1, max_size=3), st.text(max_size=3)
)
def test_an_edit_is_applied_exactly_when_it_matches_once(source, search, replace):
    count = sum(source.startswith(search, at) for at in range(len(source)))
    if count == 1:
        assert apply_edits(source, [Edit(search=search, replace=replace)]) == source.replace(search, replace)
    else:
        with pytest.raises(BadReply, match=f"matches {count} times"):
            apply_edits(source, [Edit(search=search, replace=replace)])


def test_edits_are_looked_for_in_the_file_as_it_was_and_may_not_overlap():
    swap = [Edit(search="a", replace="b"), Edit(search="b", replace="a")]
    assert apply_edits("a-b", swap) == "b-a"
    with pytest.raises(BadReply, match="overlap"):
        apply_edits("abc", [Edit(search="ab", replace=""), Edit(search="bc", replace="")])


# Money


def reply_of(model: str, **changes) -> Reply:
    fields = {"text": "", "model": model, "seconds": 1.0, "attempts": 1, "tokens_in": 1000, "tokens_out": 500}
    return Reply(**(fields | changes))


def test_cost_follows_the_table_and_unknown_is_none():
    price = Price(provider="openai", name="m-1", input=2.0, output=8.0, cached=0.5, up_to=10_000)
    prices = Prices(date="2026-01-31", source="a test", model=(price,))
    own = parse_spec("openai:m-1")
    assert cost_of(own, reply_of("m-1"), prices) == pytest.approx((1000 * 2 + 500 * 8) / 1e6)
    dated = reply_of("m-1-2026-01-31", cached=400)
    assert cost_of(own, dated, prices) == pytest.approx((600 * 2 + 400 * 0.5 + 500 * 8) / 1e6)
    assert cost_of(own, reply_of("m-1", tokens_in=10_001), prices) is None
    assert cost_of(own, reply_of("m-1", tokens_in=None), prices) is None
    assert cost_of(parse_spec("openai:m-2"), reply_of("m-2"), prices) is None
    assert cost_of(parse_spec("openai:m-1@http://h/v1"), reply_of("m-1"), prices) is None
    assert cost_of(parse_spec("anthropic:m-1"), reply_of("m-1"), prices) is None


def test_the_shipped_table_names_date_source_and_each_model_once():
    table = read_prices()
    assert table.date.year >= 2026 and table.source
    names = [(one.provider, one.name) for one in table.model]
    assert len(names) == len(set(names)) and {"openai", "anthropic"} == {one.provider for one in table.model}
    assert all(0 < one.input <= one.output for one in table.model)
    assert table.of("openai", "gpt-5-mini").name == "gpt-5-mini"
    assert table.of("anthropic", "claude-sonnet-4-5-20250929").name == "claude-sonnet-4-5"


def exchange_of(**changes) -> Exchange:
    fields = {"role": "writer", "provider": "openai", "model": "m", "prompt_hash": "p", "reply_hash": "r"}
    return Exchange(**(fields | {"seconds": 2.0, "tokens_in": 10, "tokens_out": 4, "cost": 0.5} | changes))


def test_totals_add_up_and_name_what_is_unknown():
    failed = exchange_of(reply_hash=None, tokens_in=None, tokens_out=None, cost=None, failure="no")
    spent = totals([exchange_of(), exchange_of(), failed])
    assert spent == Totals(calls=3, tokens_in=20, tokens_out=8, cost=1.0, seconds=6.0)
    assert spent.money == "$1.0000"
    odd = totals([exchange_of(), exchange_of(model="local", cost=None, tokens_in=None, tokens_out=None)])
    assert (odd.unpriced, odd.uncounted) == (("local",), 1)
    assert odd.money == "$0.5000 and an unknown price for local"
    assert totals([exchange_of(model="local", cost=None)]).money == "unknown price (local)"


def test_a_cost_limit_ends_when_reached_and_when_it_cannot_be_kept():
    spent = totals([exchange_of(), exchange_of()])
    assert past_limit(spent, None) is None and past_limit(spent, 1.01) is None
    assert past_limit(spent, 1.0) == "--max-cost 1 is reached: $1.0000 spent in 2 calls"
    assert "local has no known price" in past_limit(totals([exchange_of(model="local", cost=None)]), 99.0)


# Without the extra


def test_listing_authors_imports_neither_the_library_nor_torch():
    script = (
        "import sys; from kernelwright.core import plugins; from kernelwright.agents import llm; "
        "assert 'llm' in plugins.names('agents'); "
        "print([name for name in ('pydantic_ai', 'openai', 'anthropic', 'torch') if name in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert found.stdout.strip() == "[]"


def test_a_missing_library_names_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(errors.PackageMissing, match=r"kernelwright\[llm\]"):
        agent.author("openai:m@http://127.0.0.1:9/v1")


# A whole search


def sets_toward_the_valley() -> list[Say]:
    """Return what an llm would say that walks to the lowest point, with one bad answer and one failure on the way."""
    steps = [
        {"UNROLL": 2, "BLOCK": 64},
        {"UNROLL": 4, "BLOCK": 64},
        {"UNROLL": 8, "BLOCK": 128, "two_pass": True},
    ]
    good = [said({"note": f"step {number}", "sets": [values]}) for number, values in enumerate(steps)]
    return [good[0], Say("hm"), good[1], error(400, "maximum context length"), good[2]]


def test_a_search_driven_by_an_llm_finds_the_best_and_is_repeated_from_its_recording(
    monkeypatch, make, tmp_path
):
    monkeypatch.setenv("KERNELWRIGHT_LLM_KEY", KEY)
    landscape = valley(make.problem())
    answers: list[Answer] = []

    class Watched:
        def __init__(self, author):
            self.author = author

        def propose(self, brief: Brief) -> Answer:
            answers.append(self.author.propose(brief))
            return answers[-1]

    def search(author) -> RecordedRun:
        config = settings(strategy="greedy", seed=1, max_expansions=5)
        return RecordedRun(landscape, Watched(author), config, folder=tmp_path).search()

    with serving("openai", *sets_toward_the_valley()) as there:
        author = agent.author(f"{there.spec},mode=params,attempts=1")
        found = search(author)
    best = found.tree.nodes[landscape.problem.hash, found.tree.best[landscape.problem.hash]]
    assert best.candidate.choices[-1].values == {"UNROLL": 8, "BLOCK": 128, "two_pass": True}
    assert best.evaluations[-1].timing.cases[0].median_us == pytest.approx(30.0)
    exchanges = [one for answer in answers for one in answer.exchanges]
    assert [bool(one.failure) for one in exchanges[:5]] == [False, True, False, True, False]
    assert totals(exchanges).tokens_in == 120 * sum(one.reply_hash is not None for one in exchanges)

    texts = {digest(text): text for answer in answers for text in answer.texts}
    monkeypatch.delenv("KERNELWRIGHT_LLM_KEY")
    again = search(agent.replayed(f"{there.spec},mode=params,attempts=1", exchanges, texts.__getitem__))
    assert again.tree.best == found.tree.best
    proposed = [body for body in found.bodies if isinstance(body, CandidateProposed)]
    assert [body for body in again.bodies if isinstance(body, CandidateProposed)] == proposed
