"""Connections that a server turned away, as lines of its log. gRPC tells of them on the standard error alone."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

EVERY = 1.0  # seconds between two lines, however many come
_ITS_LINE = re.compile(r"[IWEF]\d{4} [\d:.]+ +\d+ \S+:\d+\] (.*)")
_MEANINGS = {
    "certificate has expired": "its certificate has expired; are both clocks right?",
    "not yet valid": "its certificate is not valid yet; are both clocks right?",
    "CERTIFICATE_VERIFY_FAILED": "its key is not in the roster",
    "DID_NOT_RETURN_A_CERTIFICATE": "it showed no certificate",
    "WRONG_VERSION_NUMBER": "it did not speak TLS",
    "HTTP_REQUEST": "it did not speak TLS",
    "ALERT": "it did not take this server for the one it expects",
}
log = logging.getLogger(__name__)


@contextmanager
def overhearing() -> Iterator[None]:
    """Read what is written beneath Python to the standard error; all that is not gRPC's goes where it went before."""
    if os.environ.get("GRPC_VERBOSITY", "NONE") != "NONE":  # somebody wants to read it as it is
        yield
        return
    os.environ["GRPC_VERBOSITY"] = "INFO"
    before = sys.stderr
    real, (source, sink) = os.dup(2), os.pipe()
    os.dup2(sink, 2)
    os.close(sink)
    sys.stderr = open(os.dup(real), "w", buffering=1, errors="backslashreplace")  # noqa: SIM115 - closed below
    listener = threading.Thread(target=_listen, args=(source, real), name="atoll-overhear", daemon=True)
    listener.start()
    try:
        yield
    finally:
        os.dup2(real, 2)  # the last end of the pipe, unless a child has one
        listener.join(1.0)
        sys.stderr.close()
        sys.stderr = before


def _listen(source: int, real: int) -> None:
    said, more = -EVERY, 0
    with open(source, errors="replace") as lines:
        for line in lines:
            its = _ITS_LINE.match(line)
            if not its:
                os.write(real, line.encode())
            elif "Handshake failed" in its[1]:
                more += 1
                if time.monotonic() - said >= EVERY:
                    log.warning("%s", turned_away(its[1], more - 1))
                    said, more = time.monotonic(), 0


def turned_away(line: str, more: int = 0) -> str:
    """Say in a sentence what gRPC says of a handshake."""
    why = next((meaning for words, meaning in _MEANINGS.items() if words in line), line.rpartition("error:")[2][:200])
    return f"turned away a connection: {why}" + (f" ({more} others before it)" if more else "")
