"""`Halt`: a word given once, from any thread, that ends whatever is being waited for."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Halt:
    """Given, it wakes whoever sleeps on it and calls whoever registered."""

    def __init__(self) -> None:
        self._given = threading.Event()
        self._lock = threading.Lock()
        self._acts: dict[int, Callable[[], object]] = {}

    @property
    def is_given(self) -> bool:
        """Tell whether it was given."""
        return self._given.is_set()

    def give(self) -> None:
        """Give the word; a second time changes nothing."""
        with self._lock:
            self._given.set()
            acts, self._acts = list(self._acts.values()), {}
        for act in acts:
            act()

    def sleep(self, seconds: float) -> None:
        """Sleep so long, or until the word is given."""
        self._given.wait(seconds)

    @contextmanager
    def calling(self, act: Callable[[], object]) -> Iterator[None]:
        """Have something called when the word is given while the block lasts; at once if it was given before."""
        with self._lock:
            if not self.is_given:
                self._acts[id(act)] = act
        if self.is_given:
            act()
        try:
            yield
        finally:
            with self._lock:
                self._acts.pop(id(act), None)
