"""Servers are asked with bounds, their failures are ours by name, and a key is nowhere but in the request."""

import asyncio
import copy
import json
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path

import pytest

from kernelwright.agents.command import kept_environment
from kernelwright.core import errors
from kernelwright.core.environment import child_environment
from kernelwright.core.halt import Halt
from kernelwright.core.thinking import Reflection
from kernelwright.llm.providers import Server, connect
from kernelwright.llm.questions import Message, Question
from kernelwright.llm.secret import Secret, find_key, read_key_file
from kernelwright.llm.spec import LlmSpec, parse_spec
from tests.unit.llm_servers import MODEL, Say, error, serving

pytest.importorskip("pydantic_ai")
KEY = "planted-key-3b1f9c0d7e"
ASKED = Question("writer", (Message("system", "You are terse."), Message("user", "Say something.")), seed=7)
PROTOCOLS = ("openai", "anthropic")


def server_of(spec: str, **changes) -> tuple[Server, list[float]]:
    """Return a server with the planted key whose waits are noted, not waited for."""
    waits: list[float] = []
    named = parse_spec(spec).model_copy(update=changes)
    found = connect(named, {"KERNELWRIGHT_LLM_KEY": KEY})
    return replace(found, sleep=waits.append), waits


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_answer_comes_with_the_servers_model_id_tokens_and_attempts(protocol):
    with serving(protocol, Say("a word", tokens=(11, 5))) as there:
        llm, waits = server_of(there.spec, temperature=0.5)
        reply = llm.ask(ASKED)
    assert (reply.text, reply.model, reply.tokens_in, reply.tokens_out) == ("a word", MODEL[protocol], 11, 5)
    assert (reply.attempts, reply.is_cut, waits) == (1, False, [])
    sent = there.asked[0]
    assert (sent["model"], sent["temperature"]) == ("test-model", 0.5)
    assert sent.get("seed") == (7 if protocol == "openai" else None)
    texts = json.dumps(sent)
    assert "You are terse." in texts and "Say something." in texts
    assert there.headers_seen[0]["authorization"] == f"Bearer {KEY}"
    assert there.paths == [{"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}[protocol]]


def test_what_the_server_did_not_count_is_unknown_not_zero():
    with serving("openai", Say("a word", tokens=None)) as there:
        reply = server_of(there.spec)[0].ask(ASKED)
    assert (reply.tokens_in, reply.tokens_out) == (None, None)


def test_an_answer_cut_at_the_token_limit_says_so():
    with serving("openai", Say('{"note": "ha', cut=True)) as there:
        assert server_of(there.spec)[0].ask(ASKED).is_cut


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_busy_server_is_asked_again_after_the_time_it_names(protocol):
    busy = error(429, "slow down", "rate_limit_error", Retry_After="7")
    with serving(protocol, busy, busy, Say("at last")) as there:
        llm, waits = server_of(there.spec)
        reply = llm.ask(ASKED)
    assert (reply.text, reply.attempts, waits) == ("at last", 3, [7.0, 7.0])


def test_a_server_that_asks_to_wait_longer_than_there_is_time_is_not_waited_for():
    with serving("openai", error(429, "slow down", "rate_limit_exceeded", Retry_After="3600")) as there:
        llm, waits = server_of(there.spec)
        with pytest.raises(errors.LlmRateLimited, match="for 3600 s"):
            llm.ask(ASKED)
    assert waits == []


def test_waits_without_a_hint_double_and_attempts_are_bounded():
    with serving("openai", *[error(500, "oops")] * 9) as there:
        llm, waits = server_of(there.spec)
        with pytest.raises(errors.LlmServerFailed, match="failed 4 times: status 500: oops") as caught:
            llm.ask(ASKED)
    assert (waits, len(there.asked), caught.value.attempts) == ([1.0, 2.0, 4.0], 4, 4)


FINAL = {
    "LlmKeyRefused": error(401, f"Incorrect API key provided: {KEY}", "invalid_api_key"),
    "LlmUnknownModel": error(404, "The model does not exist", "model_not_found"),
    "LlmContextTooLong": error(400, "maximum context length is 8 tokens", "context_length_exceeded"),
    "LlmRequestRefused": error(400, f"no such field, by {KEY}", "invalid_request_error"),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", FINAL)
def test_what_asking_again_cannot_mend_is_asked_once_and_named(name, protocol):
    with serving(protocol, FINAL[name]) as there:
        llm, waits = server_of(there.spec)
        with pytest.raises(getattr(errors, name)) as caught:
            llm.ask(ASKED)
    assert (len(there.asked), waits) == (1, [])
    assert f"'{protocol}@http://127.0.0.1" in str(caught.value)


def test_spent_quota_is_not_waited_for():
    with serving("openai", error(429, "no money", "insufficient_quota", Retry_After="1")) as there:
        llm, waits = server_of(there.spec)
        with pytest.raises(errors.LlmQuotaSpent):
            llm.ask(ASKED)
    assert waits == []


@pytest.mark.parametrize("words", ["prompt is too long: 9 tokens", "exceeds the available context size"])
def test_servers_without_a_code_for_it_say_too_long_in_words(words):
    said = error(400, words, "invalid_request_error")
    with serving("openai", said) as there, pytest.raises(errors.LlmContextTooLong):
        server_of(there.spec)[0].ask(ASKED)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("body", [b"{ this is no JSON", b'"a bare word"', b"[]", b'{"unexpected": true}'])
def test_a_malformed_answer_is_an_error_and_never_an_invented_one(protocol, body):
    with serving(protocol, *[Say(body=body)] * 4) as there, pytest.raises(errors.LlmFailed) as caught:
        server_of(there.spec, attempts=2)[0].ask(ASKED)
    assert type(caught.value) in (errors.LlmBadReply, errors.LlmServerFailed, errors.LlmUnreachable)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_slow_server_is_given_up_after_the_time_limit(protocol):
    with serving(protocol, Say("late", delay_s=0.6), Say("in time")) as there:
        llm, waits = server_of(there.spec, timeout=0.25)
        assert llm.ask(ASKED).text == "in time"
        assert waits == [1.0]
    with serving(protocol, Say("late", delay_s=0.6)) as there:
        llm, _ = server_of(there.spec, timeout=0.25, attempts=1)
        with pytest.raises(errors.LlmTimedOut, match=r"within 0\.25 s"):
            llm.ask(ASKED)


def test_a_server_that_is_not_there_is_unreachable():
    with serving("openai") as there:
        spec = there.spec
    llm, waits = server_of(spec, attempts=2)
    with pytest.raises(errors.LlmUnreachable, match="Check the address"):
        llm.ask(ASKED)
    assert waits == [1.0]


def test_it_can_be_asked_where_an_event_loop_runs_already():
    async def inside() -> str:
        return llm.ask(ASKED).text

    with serving("openai", Say("a word")) as there:
        llm, _ = server_of(there.spec)
        assert asyncio.run(inside()) == "a word"


# Keys


def every_text_of(failure: BaseException) -> str:
    """Return everything that can be read off an error, its causes included."""
    found, at = [], failure
    while at is not None:
        found += [str(at), repr(at), repr(vars(at)), "".join(traceback.format_exception(at))]
        at = at.__cause__ or at.__context__
    return "\n".join(found)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", FINAL)
def test_the_key_is_in_no_error_and_in_no_log(name, protocol, caplog):
    caplog.set_level(logging.DEBUG)
    with serving(protocol, FINAL[name]) as there, pytest.raises(errors.LlmFailed) as caught:
        server_of(there.spec)[0].ask(ASKED)
    assert KEY in json.dumps(there.headers_seen)  # it was sent
    assert KEY not in every_text_of(caught.value)
    assert KEY not in caplog.text
    assert KEY not in "".join(repr(record.__dict__) for record in caplog.records)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_key_that_strayed_into_prompt_or_answer_is_cut_out(protocol):
    question = replace(ASKED, messages=(Message("user", f"Use {KEY} here."),))
    with serving(protocol, Say(f"your key is {KEY}")) as there:
        reply = server_of(there.spec)[0].ask(question)
    assert reply.text == "your key is <secret>"
    assert KEY not in json.dumps(there.asked) and "Use <secret> here." in json.dumps(there.asked)


def test_a_secret_cannot_be_printed_copied_or_pickled():
    secret = Secret(KEY)
    shown = [str(secret), repr(secret), f"{secret}", f"{secret!s:>20}".strip(), repr([secret])]
    assert KEY not in "".join(shown) and set(shown) == {"<secret>", "[<secret>]"}
    with pytest.raises(TypeError):
        vars(secret)
    for refuse in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="never"):
            refuse(secret)
    with pytest.raises(TypeError):
        json.dumps(secret)
    llm, _ = server_of("openai:m@http://127.0.0.1:1/v1")
    assert KEY not in repr(llm)
    with pytest.raises(TypeError):
        pickle.dumps(replace(llm, sleep=print))


def test_a_planted_key_reaches_no_child(monkeypatch, tmp_path):
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "KERNELWRIGHT_LLM_KEY", "KERNELWRIGHT_LLM_KEY_FILE"):
        monkeypatch.setenv(name, KEY)
    for environment in (child_environment(os.environ, tmp_path, tmp_path, 1), kept_environment(os.environ)):
        seen = subprocess.run(
            [sys.executable, "-I", "-c", "import os; print(dict(os.environ))"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert "PATH" in seen and KEY not in seen


def test_a_providers_own_key_goes_to_no_other_server():
    environment = {"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY}
    assert find_key("openai", "http://127.0.0.1:1/v1", environment) is None
    assert find_key("openai", None, environment).reveal() == KEY
    with serving("openai", Say("a word")) as there:
        connect(parse_spec(there.spec), environment).ask(ASKED)
    assert KEY not in json.dumps(there.headers_seen)


def test_a_missing_key_names_the_variable():
    for provider, variable in (("openai", "OPENAI_API_KEY"), ("anthropic", "ANTHROPIC_API_KEY")):
        with pytest.raises(errors.LlmKeyMissing, match=variable):
            connect(LlmSpec(provider=provider, model="m"), {})


def key_file(folder: Path, text: str = KEY + "\n", mode: int = 0o600) -> Path:
    path = folder / "key"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_key_file_of_ones_own_is_read(tmp_path):
    path = key_file(tmp_path)
    assert read_key_file(path).reveal() == KEY
    found = find_key("anthropic", None, {"KERNELWRIGHT_LLM_KEY_FILE": str(path)})
    assert found.reveal() == KEY


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620])
def test_a_key_file_others_may_use_is_refused_without_showing_it(tmp_path, mode):
    with pytest.raises(errors.LlmKeyFileUnsafe, match="chmod 600") as caught:
        read_key_file(key_file(tmp_path, mode=mode))
    assert KEY not in every_text_of(caught.value)


def test_a_link_a_pipe_and_a_file_without_a_key_are_refused(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(key_file(tmp_path))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for path in (link, pipe, tmp_path):
        with pytest.raises(errors.LlmKeyFileUnsafe):
            read_key_file(path)
    for text in ("", "\n\n", f"{KEY}\n{KEY}\n"):
        with pytest.raises(errors.LlmKeyFileUnsafe, match="one line"):
            read_key_file(key_file(tmp_path, text))
    with pytest.raises(errors.NotFound):
        read_key_file(tmp_path / "nothing")


# Names of llms


def test_a_name_holds_provider_model_address_and_options():
    local = parse_spec("openai:qwen2.5-coder:7b@http://localhost:11434/v1,temperature=0.2,timeout=30")
    assert local == LlmSpec(
        provider="openai",
        model="qwen2.5-coder:7b",
        base_url="http://localhost:11434/v1",
        temperature=0.2,
        timeout=30.0,
    )
    assert (local.is_local, local.where) == (True, "openai@http://localhost:11434/v1")
    assert parse_spec("anthropic:claude-x,mode=params").mode == "params"
    assert not parse_spec("openai:m@http://10.0.0.1/v1").is_local


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpt",
        "mistral:m",
        "openai:",
        "openai:m,colour=red",
        "openai:m,temperature=hot",
        "openai:m,timeout=0",
        "anthropic:m,temperature=1.1",
        "openai:m,mode=poem",
        "openai:m@ftp://h",
    ],
)
def test_a_name_that_is_none_says_how_to_write_one(text):
    with pytest.raises(errors.BadInput, match="Write openai:MODEL"):
        parse_spec(text)


@pytest.mark.parametrize(
    "text", [f"openai:sk-{KEY}", f"openai:m@http://u:{KEY}@h/v1", f"openai:m@http://h/v1?key={KEY}"]
)
def test_a_key_in_a_name_is_refused_and_not_repeated(text):
    with pytest.raises(errors.BadInput) as caught:
        parse_spec(text)
    assert KEY not in every_text_of(caught.value)


def test_offline_allows_servers_on_this_machine_alone():
    offline = {"KERNELWRIGHT_OFFLINE": "1", "OPENAI_API_KEY": KEY}
    with pytest.raises(errors.BadInput, match="KERNELWRIGHT_OFFLINE"):
        connect(parse_spec("openai:gpt-5"), offline)
    assert connect(parse_spec("openai:m@http://127.0.0.1:9/v1"), offline).key is None


# Stopping


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_question_nobody_waits_for_ends_at_once_and_closes_its_connection(protocol):
    halt = Halt()
    with serving(protocol, Say("late", delay_s=60.0)) as there:
        threading.Thread(target=lambda: (there.was_asked.wait(60), halt.give())).start()
        began = time.monotonic()
        with pytest.raises(errors.LlmCancelled, match="told to stop"):
            server_of(there.spec)[0].ask(replace(ASKED, halt=halt))
        assert time.monotonic() - began < 15
        assert len(there.asked) == 1
    with pytest.raises(errors.LlmCancelled):
        server_of("openai:m@http://127.0.0.1:1/v1")[0].ask(replace(ASKED, halt=halt))


def test_the_wait_for_a_busy_server_ends_at_once_too():
    halt = Halt()
    with serving("openai", error(429, "slow down", retry_after="30")) as there:
        threading.Thread(target=lambda: (there.was_asked.wait(60), halt.give())).start()
        began = time.monotonic()
        with pytest.raises(errors.LlmCancelled):
            connect(parse_spec(there.spec), {}).ask(replace(ASKED, halt=halt))
        assert time.monotonic() - began < 15 and len(there.asked) == 1


def test_a_server_can_be_asked_to_hold_the_answer_to_its_schema():
    with serving("openai", Say("{}"), Say("{}")) as there:
        server_of(there.spec, reply="schema")[0].ask(replace(ASKED, schema=Reflection))
        server_of(there.spec)[0].ask(replace(ASKED, schema=Reflection))
    wanted = there.asked[0]["response_format"]
    assert wanted["type"] == "json_schema"
    assert set(wanted["json_schema"]["schema"]["properties"]) == set(Reflection.model_fields)
    assert "response_format" not in there.asked[1]
