"""A writer that dies at any moment takes nothing with it that it acknowledged."""

import os
import random
import signal
import struct
import time
from pathlib import Path

from kernelwright.core.events import Noted
from kernelwright.store.journal import Journal

KILLS = 50
APPENDS = 5
BATCHES = (1, 1, 2, 7, 40)
COUNT = struct.Struct("<q")


def write_until_killed(folder: Path, acknowledge: int, seed: int) -> None:
    """Append singles and batches for ever, reporting after each append how many events there are."""
    rng = random.Random(seed)
    journal = Journal.open_for_writing(folder)
    count = journal.summary().events
    while True:
        os.write(acknowledge, COUNT.pack(count))
        size = rng.choice(BATCHES)
        journal.append([Noted(text=f"event {seq}") for seq in range(count, count + size)])
        count += size


def killed_writer(folder: Path, rng: random.Random) -> list[int]:
    """Start a writer, kill it somewhere in one of its first appends, and return what it acknowledged."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            write_until_killed(folder, send, seed=rng.randrange(1 << 30))
        finally:
            os._exit(1)
    os.close(send)
    with os.fdopen(receive, "rb", buffering=0) as pipe:
        reported = pipe.read(COUNT.size)
        # By its own pace, not by the clock: on a busy machine an append may take a hundred times as long.
        began, awaited = time.monotonic(), rng.randrange(APPENDS)
        for _ in range(awaited):
            reported += pipe.read(COUNT.size)
        pace_s = (time.monotonic() - began) / awaited if awaited else 0.001
        time.sleep(rng.uniform(0, 1.5 * pace_s))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "the writer ended by itself"
        while more := pipe.read(4096):
            reported += more
    return [count for (count,) in COUNT.iter_unpack(reported)]


def test_a_writer_killed_at_fifty_random_moments_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    rng = random.Random(0)
    Journal.create(tmp_path, "r1").close()
    reader = Journal.open(tmp_path)
    present, appends = 0, 0
    for _ in range(KILLS):
        acknowledged = killed_writer(tmp_path, rng)
        assert acknowledged[0] == present, "the next writer continues where the journal ends"
        texts = [body.text for body in reader.bodies(present) if isinstance(body, Noted)]
        assert texts == [f"event {seq}" for seq in range(present, present + len(texts))]
        present += len(texts)
        assert present - acknowledged[-1] in (0, *BATCHES), "an append is there whole or not at all"
        appends += len(acknowledged) - 1
    assert appends >= KILLS, f"only {appends} appends were acknowledged: the kills proved little"
    assert reader.verify().model_dump(exclude={"head"}) == {"verdict": "sound", "events": present}
    with Journal.open_for_writing(tmp_path) as journal:
        assert journal.append([Noted(text="after all of them")]) == [present]


def test_a_writer_killed_while_it_opens_the_journal_leaves_it_sound(tmp_path: Path) -> None:
    rng = random.Random(1)
    with Journal.create(tmp_path, "r1") as journal:
        journal.append([Noted(text="first")])
    for _ in range(10):
        child = os.fork()
        if child == 0:
            try:
                Journal.open_for_writing(tmp_path).close()
            finally:
                os._exit(0)
        time.sleep(rng.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert Journal.open(tmp_path).verify().model_dump(exclude={"head"}) == {"verdict": "sound", "events": 1}
    with Journal.open_for_writing(tmp_path) as journal:
        assert journal.append([Noted(text="second")]) == [1]
