"""The last answer to each question of a job, on the party's disk: asked the same again, the same bytes leave."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from shutil import rmtree

from atoll.core.disk import replace_file
from atoll.core.errors import Unwritable

_HEAD = 64  # bytes before the answer: digests of the question and of it


class LastAnswers:
    """Answers of one job that may be asked for again, after a restart of either side.

    The same bytes say nothing more than they said, so that they cost no budget. What a power cut takes or a disk
    changes is worked out anew, and counts.

    Args:
        folder: where they are, for this job alone.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def recall(self, what: str, asked: bytes) -> bytes | None:
        """Return the last answer to this question, if it was asked with the same bytes and is whole."""
        try:
            kept = self._path(what).read_bytes()
        except OSError:
            return None
        return kept[_HEAD:] if kept[:_HEAD] == _head(asked, kept[_HEAD:]) else None

    def remember(self, what: str, asked: bytes, answer: bytes) -> None:
        """Take the place of the answer before."""
        try:
            for one in (self._folder.parent, self._folder):  # a mode is that of the last folder only
                one.mkdir(parents=True, exist_ok=True, mode=0o700)
            replace_file(self._path(what), [_head(asked, answer), answer], mode=0o600, sync=False)
        except OSError as error:
            raise Unwritable(
                f"cannot write to {self._folder}: {error.strerror}; free some space, then join again"
            ) from None

    def forget(self) -> None:
        """Delete them: the run is over, and nobody asks again."""
        rmtree(self._folder, ignore_errors=True)

    def _path(self, what: str) -> Path:
        return self._folder / sha256(what.encode()).hexdigest()[:16]


def _head(asked: bytes, answer: bytes) -> bytes:
    return sha256(asked).digest() + sha256(answer).digest()
