"""How processes talk: length-prefixed frames, parsed strictly.

Two dialects share nothing but their strictness:
- between trusted processes (engine, judge, reference, model): a header and one JSON message checked by pydantic;
- from a runner, which may be hostile: exactly 16 bytes, a word from a closed list and a number. No text, no pickle,
  nothing that could carry a verdict.
"""

import socket
import struct
from enum import IntEnum
from typing import IO, NamedTuple, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from kernelwright.core.errors import BadFrame

Message = TypeVar("Message")

MAGIC = b"KWF1"
HEADER = struct.Struct("<4sI")
MAX_MESSAGE_BYTES = 64 << 20
"""A candidate's source, a journal's worth of cases: far below; a length beyond it is an attack or a bug."""


def pack(message: BaseModel) -> bytes:
    """Return the frame of a message."""
    body = message.model_dump_json().encode()
    if len(body) > MAX_MESSAGE_BYTES:
        raise BadFrame(f"message of {len(body)} bytes exceeds {MAX_MESSAGE_BYTES}")
    return HEADER.pack(MAGIC, len(body)) + body


def body_length(header: bytes) -> int:
    """Return the length a header announces."""
    magic, length = HEADER.unpack(header)
    if magic != MAGIC:
        raise BadFrame(f"magic {magic!r} instead of {MAGIC!r}")
    if length > MAX_MESSAGE_BYTES:
        raise BadFrame(f"announced length {length} exceeds {MAX_MESSAGE_BYTES}")
    return int(length)


def parse(body: bytes, kind: TypeAdapter[Message]) -> Message:
    """Return the message in a frame's body."""
    try:
        return kind.validate_json(body)
    except ValidationError as error:
        raise BadFrame(f"{error.error_count()} invalid fields, first: {error.errors()[0]['msg']}") from error


def read_exactly(stream: IO[bytes], count: int) -> bytes:
    """Return that many bytes, or fewer only at the end of the stream."""
    parts, missing = [], count
    while missing and (part := stream.read(missing)):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def receive_exactly(channel: socket.socket, count: int) -> bytes:
    """Return that many bytes of a socket; an end before that is an EOFError."""
    parts, missing = [], count
    while missing:
        if not (part := channel.recv(missing)):
            raise EOFError(f"the channel ended {missing} bytes short of {count}")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def read_message(stream: IO[bytes], kind: TypeAdapter[Message]) -> Message | None:
    """Return the next message of a stream, None at its clean end."""
    header = read_exactly(stream, HEADER.size)
    if not header:
        return None
    if len(header) < HEADER.size:
        raise BadFrame(f"stream ended inside a header ({len(header)} of {HEADER.size} bytes)")
    length = body_length(header)
    body = read_exactly(stream, length)
    if len(body) < length:
        raise BadFrame(f"stream ended inside a message ({len(body)} of {length} bytes)")
    return parse(body, kind)


def write_message(stream: IO[bytes], message: BaseModel) -> None:
    """Write one message and flush it."""
    stream.write(pack(message))
    stream.flush()


class Word(IntEnum):
    """Everything a runner can say."""

    READY = 1
    """The artefact is loaded and the buffers are mapped."""
    DONE = 2
    """Batch n was executed; what it wrote is in the buffers."""
    DECLINED = 3
    """The kernel returned a named refusal for call n; the code says which."""
    FAILED = 4
    """The artefact could not be loaded or raised on call n; the code says whether for want of memory."""


NO_MEMORY = 1
"""Code of a FAILED reply: an allocation was refused."""
ROUNDING = 0xF9
"""Code of a DECLINED reply: the processor's rounding or flushing of floats was left changed."""
DELEGATED = 0xDE
"""Code of a DECLINED reply: the framework's own operators did the work. A runner can only accuse itself."""
WAITED = 0xB5
"""Code of a DECLINED reply: calls on streams of their own did not end before the legacy default stream was free."""
UNCAPTURED = 0xCA
"""Code of a DECLINED reply: host code cannot be captured in a graph."""


class Reply(NamedTuple):
    """One reply of a runner."""

    word: Word
    code: int
    number: int


REPLY = struct.Struct("<4sBBHQ")
REPLY_MAGIC = b"KWR1"


def pack_reply(reply: Reply) -> bytes:
    """Return the 16 bytes of a reply."""
    return REPLY.pack(REPLY_MAGIC, reply.word, reply.code, 0, reply.number)


def parse_reply(data: bytes) -> Reply:
    """Return the reply in exactly 16 bytes, refusing everything else."""
    if len(data) != REPLY.size:
        raise BadFrame(f"reply of {len(data)} bytes instead of {REPLY.size}")
    magic, word, code, zero, number = REPLY.unpack(data)
    if magic != REPLY_MAGIC or zero != 0 or word not in tuple(Word):
        raise BadFrame(f"reply {data.hex()} is not in the protocol")
    return Reply(Word(word), code, number)
