"""Servers that speak the protocols of OpenAI and Anthropic on this machine, with scripted answers."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = {"openai": "test-model-2026-01-31", "anthropic": "claude-test-20260131"}


@dataclass(frozen=True)
class Say:
    """One scripted answer."""

    text: str = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    """The raw body, instead of a well-formed one."""
    delay_s: float = 0.0
    tokens: tuple[int, int] | None = (120, 30)
    cut: bool = False


def error(status: int, message: str, code: str = "", **headers: str) -> Say:
    """Return an error in the shape both protocols share."""
    inner = {"message": message, "type": code or "error", "code": code or None}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Say(status=status, headers=named, body=json.dumps({"type": "error", "error": inner}).encode())


class Scripted(ThreadingHTTPServer):
    """A server that gives its answers in order and remembers what it was asked."""

    daemon_threads = True

    def __init__(self, protocol: str, answers: list[Say]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.protocol, self.answers = protocol, list(answers)
        self.asked: list[dict[str, Any]] = []
        self.headers_seen: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.lock = threading.Lock()
        self.was_asked = threading.Event()

    @property
    def spec(self) -> str:
        """Return how an author names it."""
        path = "/v1" if self.protocol == "openai" else ""
        return f"{self.protocol}:test-model@http://127.0.0.1:{self.server_address[1]}{path}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave up is what some tests are about."""


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Scripted

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.asked.append(asked)
            self.server.paths.append(self.path)
            self.server.headers_seen.append({name.lower(): value for name, value in self.headers.items()})
            say = self.server.answers.pop(0) if self.server.answers else error(418, "nothing left to say")
        self.server.was_asked.set()
        time.sleep(say.delay_s)
        body = say.body if say.body is not None else json.dumps(_shaped(self.server.protocol, say)).encode()
        self.send_response(say.status)
        for name, value in {"Content-Type": "application/json", **say.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _shaped(protocol: str, say: Say) -> dict[str, Any]:
    model = MODEL[protocol]
    if protocol == "openai":
        usage = None
        if say.tokens:
            usage = {
                "prompt_tokens": say.tokens[0],
                "completion_tokens": say.tokens[1],
                "total_tokens": sum(say.tokens),
            }
        message = {"role": "assistant", "content": say.text}
        choice = {"index": 0, "finish_reason": "length" if say.cut else "stop", "message": message}
        return {
            "id": "chat-1",
            "object": "chat.completion",
            "created": 1,
            "model": model,
            "choices": [choice],
            "usage": usage,
        }
    counted = say.tokens or (0, 0)
    return {
        "id": "msg-1",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [{"type": "text", "text": say.text}],
        "stop_reason": "max_tokens" if say.cut else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": counted[0], "output_tokens": counted[1]},
    }


@contextmanager
def serving(protocol: str, *answers: Say) -> Iterator[Scripted]:
    """Run a server as long as the block lasts."""
    server = Scripted(protocol, list(answers))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
