"""Exit codes of `serve`, `join` and `edge`: whoever restarts a process decides by them."""

from __future__ import annotations

from enum import IntEnum

from atoll.core.errors import AtollError


class Exit(IntEnum):
    """How a process ended. Only 1 and 6 are worth a restart by themselves."""

    finished = 0
    crashed = 1  # a fault of Atoll, with a traceback
    mistaken = 2  # a command or a file that a person puts right
    failed = 3  # the run has failed; serving it again resumes it
    refused = 4  # by this party's policy, or by the server
    revoked = 5  # the server's roster has this party's key no more
    unreachable = 6  # the server did not answer until patience ended
    stopped = 130


BY_CODE = {
    "nobody_there": Exit.failed,
    "run_failed": Exit.failed,
    "not_allowed": Exit.refused,
    "refused": Exit.refused,
    "unknown_key": Exit.refused,
    "handshake": Exit.refused,
    "revoked": Exit.revoked,
    "unreachable": Exit.unreachable,
}


class RunEnded(AtollError, RuntimeError):
    """A run that had begun, and has failed; the sentence says why."""

    code = "run_ended"


def exit_code(error: Exception) -> int:
    """Return the exit code of an error that has a sentence."""
    if isinstance(error, RunEnded):
        return Exit.failed
    return BY_CODE.get(error.code, Exit.mistaken) if isinstance(error, AtollError) else Exit.mistaken
