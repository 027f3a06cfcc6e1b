"""Where the tracks of a race on a GPU wait for the next race of the same cases.

Of a race of sixteen arms two fifths went into opening launchers and closing them again. Whoever comes next finds what
it would find within a race: launchers that others have been in before, which load every kernel anew, and buffers that
are filled and blanked for every pass. A launcher serves so many heats and no more, however many races they belong to.
"""

from contextlib import suppress

from kernelwright.core.errors import ServiceDied
from kernelwright.judge.track import Track

WAITING_SHARE = 8
"""What waits takes at most this part of a device's memory: the next candidate is checked beside it."""


class Paddock:
    """The tracks of one nursery's launchers that no race is using, by case."""

    def __init__(self) -> None:
        self.tracks: dict[str, Track] = {}

    def take(self, case_hash: str, size: int, index: int) -> Track | None:
        """Hand out what waits for a case, with so many calls, on a device; where nothing does, close what waits."""
        track = self.tracks.pop(case_hash, None)
        if track and (len(track.boxes[0].arena.calls), track.boxes[0].arena.index) == (size, index):
            return track
        if track:
            _close(track)
        self.close()
        return None

    def leave(self, track: Track, memory_bytes: int) -> None:
        """Keep a track whose race has ended, if there is room."""
        taken = sum(one.nbytes for one in self.tracks.values())
        if track.case.hash in self.tracks or taken + track.nbytes > memory_bytes // WAITING_SHARE:
            _close(track)
        else:
            self.tracks[track.case.hash] = track

    def close(self) -> None:
        """Kill the launchers that wait, and give their memory back."""
        while self.tracks:
            _close(self.tracks.popitem()[1])


def _close(track: Track) -> None:
    with suppress(ServiceDied):  # and they with their nursery
        track.close()
