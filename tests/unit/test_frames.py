"""Frames between processes are parsed strictly: what is not in the protocol is `BadFrame` and nothing else."""

import io
import json
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from kernelwright.core import frames
from kernelwright.core.brief import Trial
from kernelwright.core.errors import BadFrame
from kernelwright.core.frames import (
    HEADER,
    MAGIC,
    MAX_MESSAGE_BYTES,
    REPLY_MAGIC,
    Reply,
    Word,
    body_length,
    pack,
    pack_reply,
    parse_reply,
    read_message,
    write_message,
)
from kernelwright.core.frozen import Frozen
from kernelwright.core.messages.builder import BUILD_REQUEST, BuildRequest
from kernelwright.core.messages.judge import (
    JUDGE_ANSWER,
    JUDGE_REQUEST,
    Compare,
    ComparisonAnswer,
    Disqualified,
    Evaluate,
    EvaluationAnswer,
    JudgeSettings,
    Screen,
    ScreeningAnswer,
)
from kernelwright.core.messages.progress import Fault, Progress
from kernelwright.core.messages.runner import RUNNER_ORDER, Call, Job, Region, Run
from kernelwright.core.verdict import Profile, Screening, Status

TEXT = st.text('ab "\\\n\0é€😀{}[]:,', max_size=30)
BIG = st.integers(0, 1 << 62)
PLAIN_MESSAGES = st.one_of(
    st.builds(Progress, text=TEXT),
    st.builds(Fault, error=TEXT, message=TEXT, trace=TEXT),
    st.builds(
        ComparisonAnswer,
        results=st.tuples(
            st.builds(Disqualified, candidate_hash=TEXT, status=st.sampled_from(Status), reason=TEXT)
        ),
    ),
)


class Dribble(io.RawIOBase):
    """A stream that gives one byte at a time, as a pipe may."""

    def __init__(self, data: bytes) -> None:
        self.inner = io.BytesIO(data)

    def read(self, size: int = -1) -> bytes:
        return self.inner.read(min(size, 1))


def read_all(data: bytes, kind: TypeAdapter) -> list:
    stream, found = io.BytesIO(data), []
    while (message := read_message(stream, kind)) is not None:
        found.append(message)
    return found


@given(st.lists(PLAIN_MESSAGES, max_size=4))
def test_messages_come_back_unchanged_and_in_order(messages):
    stream = io.BytesIO()
    for message in messages:
        write_message(stream, message)
    assert read_all(stream.getvalue(), JUDGE_ANSWER) == messages


@given(TEXT, st.dictionaries(TEXT, st.booleans() | st.integers() | st.floats(allow_nan=False), max_size=3))
def test_parameter_values_keep_their_type_on_the_way(source, values):
    finite = {key: value for key, value in values.items() if value not in (float("inf"), float("-inf"))}
    message = BuildRequest(backend="cpp", source=source, values=finite, folder="/f")
    (found,) = read_all(pack(message), BUILD_REQUEST)
    assert found == message
    assert [type(value) for value in found.values.values()] == [type(v) for v in finite.values()]


@given(BIG, BIG, BIG)
def test_orders_to_a_runner_come_back_unchanged(make, first, count, number):
    region = Region(slab="inputs", offset=first, length=count, start=number)
    orders = [
        Job(backend="cpp", cases=(make.case(),), calls=(Call(case=0, regions={"x": region}),)),
        Run(first=first, count=count, number=number),
    ]
    assert read_all(b"".join(map(pack, orders)), RUNNER_ORDER) == orders


def test_questions_and_answers_of_the_judge_come_back_unchanged(make):
    problem, candidate = make.problem(), make.candidate()
    trial = Trial(candidate_hash=candidate.hash, values={"BLOCK": 64}, case_hash=problem.cases[0].hash)
    look = Screening(**trial.model_dump(), problem_hash=problem.hash, status=Status.ACCEPTED, latency_us=1.5)
    asked = [
        JudgeSettings(
            threads=2, max_pairs=60, alpha=0.001, hidden_shapes=8, cache_folder="/c", blob_folder="/b"
        ),
        Screen(problem=problem, candidate=candidate, trials=(trial, trial)),
        Evaluate(problem=problem, candidate=candidate, profile=Profile.KEEP),
        Compare(problem=problem, incumbent=make.baseline(), challengers=(candidate,)),
    ]
    answered = [
        ScreeningAnswer(screenings=(look, look)),
        EvaluationAnswer(evaluation=make.evaluation(candidate, problem)),
        ComparisonAnswer(results=(make.comparison(make.baseline(), candidate, problem),)),
    ]
    assert read_all(b"".join(map(pack, asked)), JUDGE_REQUEST) == asked
    assert read_all(b"".join(map(pack, answered)), JUDGE_ANSWER) == answered


def test_a_look_at_one_candidate_holds_no_trial_of_another(make):
    problem, candidate = make.problem(), make.candidate()
    trial = Trial(candidate_hash=make.baseline().hash, values={}, case_hash=problem.cases[0].hash)
    with pytest.raises(ValueError, match="trials of"):
        Screen(problem=problem, candidate=candidate, trials=(trial,))


def test_stream_that_dribbles_is_read_whole():
    message = Progress(text="building")
    assert read_message(Dribble(pack(message)), JUDGE_ANSWER) == message


def test_clean_end_of_a_stream_is_none():
    assert read_message(io.BytesIO(b""), JUDGE_ANSWER) is None


def test_every_truncation_is_a_bad_frame():
    frame = pack(Progress(text="building"))
    for length in range(1, len(frame)):
        with pytest.raises(BadFrame, match=r"stream ended inside a (header|message)"):
            read_message(io.BytesIO(frame[:length]), JUDGE_ANSWER)


def test_wrong_magic_is_a_bad_frame():
    frame = b"KWF2" + pack(Progress(text="x"))[4:]
    with pytest.raises(BadFrame, match="magic b'KWF2' instead of b'KWF1'"):
        read_message(io.BytesIO(frame), JUDGE_ANSWER)


@given(st.integers(MAX_MESSAGE_BYTES + 1, (1 << 32) - 1))
def test_oversized_announcement_is_a_bad_frame_before_anything_is_read(length):
    stream = io.BytesIO(HEADER.pack(MAGIC, length) + b"{}")
    with pytest.raises(BadFrame, match=f"announced length {length} exceeds"):
        read_message(stream, JUDGE_ANSWER)
    assert stream.tell() == HEADER.size


def test_largest_announcement_is_legal():
    assert body_length(HEADER.pack(MAGIC, MAX_MESSAGE_BYTES)) == MAX_MESSAGE_BYTES


def test_oversized_message_is_not_sent(monkeypatch):
    monkeypatch.setattr(frames, "MAX_MESSAGE_BYTES", 100)
    with pytest.raises(BadFrame, match="message of 236 bytes exceeds 100"):
        pack(Progress(text="x" * 207))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b"\x80\x04N.",
        b'{"type":"progress"}',
        b'{"type":"progress","text":1}',
        b'{"type":"verdict","text":"accepted"}',
        b'{"type":"progress","text":"x","status":"accepted"}',
        b'{"type":"progress","text":"x"} {}',
        b'{"type":"progress","text":"\\ud800"}',
        b'{"type":"disqualified","status":"fine","reason":""}',
        b"[" * 5000,
    ],
)
def test_body_that_is_no_message_is_a_bad_frame(body):
    with pytest.raises(BadFrame, match="invalid fields, first: "):
        read_message(io.BytesIO(HEADER.pack(MAGIC, len(body)) + body), JUDGE_ANSWER)


def test_number_that_is_none_is_a_bad_frame(make):
    found = make.comparison(make.baseline(), make.candidate(), make.problem())
    text = ComparisonAnswer(results=(found,)).model_dump_json()
    for word in ("NaN", "Infinity", "-Infinity"):
        body = text.replace('"e_faster":1200.0', f'"e_faster":{word}').encode()
        assert body != text.encode()
        with pytest.raises(BadFrame):
            read_message(io.BytesIO(HEADER.pack(MAGIC, len(body)) + body), JUDGE_ANSWER)


def test_verdict_that_could_not_be_built_cannot_be_received(make):
    problem, candidate = make.problem(), make.candidate()
    answer = EvaluationAnswer(evaluation=make.evaluation(candidate, problem)).model_dump(mode="json")
    answer["evaluation"]["stages"].pop()
    body = json.dumps(answer).encode()
    with pytest.raises(BadFrame, match="without passing every required stage"):
        read_message(io.BytesIO(HEADER.pack(MAGIC, len(body)) + body), JUDGE_ANSWER)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_a_message_an_end_or_a_bad_frame(data):
    try:
        found = read_message(io.BytesIO(data), JUDGE_ANSWER)
    except BadFrame:
        return
    assert found is None or isinstance(found, Frozen)
    assert found is not None or data == b""


@pytest.mark.parametrize("word", Word)
def test_reply_comes_back_for_every_word(word):
    for code, number in ((0, 0), (255, (1 << 64) - 1), (7, 42)):
        data = pack_reply(Reply(word, code, number))
        assert len(data) == 16
        assert parse_reply(data) == (word, code, number)
        assert isinstance(parse_reply(data).word, Word)


@given(st.binary(min_size=16, max_size=16))
def test_any_sixteen_bytes_are_a_legal_reply_or_a_bad_frame(data):
    try:
        reply = parse_reply(data)
    except BadFrame:
        return
    assert pack_reply(reply) == data


@pytest.mark.parametrize("word", Word)
def test_reply_with_any_bit_flipped_is_another_legal_reply_or_a_bad_frame(word):
    reply = Reply(word, 7, 42)
    for place, bit in product(range(16), range(8)):
        data = bytearray(pack_reply(reply))
        data[place] ^= 1 << bit
        is_magic_or_zero = place < 4 or place in (6, 7)
        try:
            found = parse_reply(bytes(data))
        except BadFrame:
            assert is_magic_or_zero or place == 4
            continue
        assert not is_magic_or_zero
        assert found != reply
        assert pack_reply(found) == data


@given(st.binary(min_size=11, max_size=11))
def test_any_bytes_behind_the_magic_are_a_legal_reply_or_a_bad_frame(tail):
    for word in range(6):
        data = REPLY_MAGIC + bytes([word]) + tail
        is_legal = 1 <= word <= 4 and tail[1:3] == b"\0\0"
        if is_legal:
            assert pack_reply(parse_reply(data)) == data
        else:
            with pytest.raises(BadFrame, match="is not in the protocol"):
                parse_reply(data)


@given(st.binary(max_size=40).filter(lambda data: len(data) != 16))
def test_reply_of_another_length_is_a_bad_frame(data):
    with pytest.raises(BadFrame, match=f"reply of {len(data)} bytes instead of 16"):
        parse_reply(data)


def test_every_word_but_the_four_is_a_bad_frame():
    legal = []
    for word in range(256):
        data = bytearray(pack_reply(Reply(Word.DONE, 0, 1)))
        data[4] = word
        try:
            legal.append(parse_reply(bytes(data)).word)
        except BadFrame as error:
            assert "is not in the protocol" in str(error)
    assert legal == list(Word) == [1, 2, 3, 4]
