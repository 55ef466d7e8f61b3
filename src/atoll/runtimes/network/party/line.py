"""A party's line to its server: opening it, saying hello, staying in touch while it works, saying goodbye."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from atoll.core.disk import replace_file
from atoll.crypto.keys import KEY, Refused
from atoll.runtimes.network.messages.calls import RunOver, Times
from atoll.runtimes.network.messages.envelope import Goodbye, Hello, Welcome, read_envelope, write_envelope
from atoll.runtimes.network.party.audit import AuditLog
from atoll.runtimes.network.party.policy import NotAllowed, Policy
from atoll.runtimes.network.transport import PartyTransport
from atoll.runtimes.network.trust.roster import key_text

if TYPE_CHECKING:
    from atoll.runtimes.network.trust.tls import Insecure, PartyTLS

T = TypeVar("T")
P = ParamSpec("P")
log = logging.getLogger(__name__)
PLACE = 16  # bytes that name a folder
LOOK = 5.0  # seconds between two looks at the hours of a policy


def until_over(take_part: Callable[P, str]) -> Callable[P, str]:
    """Let a function return why the run is over, also where that is all that a server has to say."""

    @wraps(take_part)
    def wrapped(*args: P.args, **named: P.kwargs) -> str:
        try:
            return take_part(*args, **named)
        except RunOver as reason:
            return str(reason)

    return wrapped


def in_hours(policy: Policy, say: Callable[[str], None], stop: threading.Event) -> bool:
    """Wait for the hours in which this party takes part; tell whether they have come before a stop."""
    if not policy.open_at(datetime.now().astimezone()):
        say(f"this party takes part at {policy.hours}, and waits until then (see {policy.name})")
    while not policy.open_at(datetime.now().astimezone()):
        if stop.wait(LOOK):
            return False
    return True


@contextmanager
def agreeing(transport: PartyTransport, policy: Policy) -> Iterator[None]:
    """Tell the server why, if the policy forbids to take part; it does not wait for this party then."""
    try:
        yield
    except NotAllowed as reason:
        leave(transport, write_envelope(Goodbye(told(policy, reason))))
        raise


def leave(transport: PartyTransport, said: bytes = b"") -> None:
    """Say goodbye: that this party ends, or knows that the run is over."""
    with suppress(Refused, OSError):  # a server that is away finds out by itself
        transport.leave(said)


def told(policy: Policy, reason: Exception) -> str:
    """Write a reason as others may read it: without the path of this party's policy."""
    sentence = str(reason).replace(policy.name, "its policy")
    return "".join(letter if letter.isprintable() else " " for letter in sentence)[:500]


@contextmanager
def calling(
    address: str,
    credentials: PartyTLS | Insecure,
    folder: Path,
    times: Times,
    policy: Policy,
    proxy: str | None = None,
) -> Iterator[tuple[PartyTransport, AuditLog]]:
    """Open a line to a server, and the record of what leaves by it; the server is told what the policy forbids."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    transport = PartyTransport(address, credentials, times=times, folder=folder, proxy=proxy)
    with AuditLog(folder / "audit.jsonl") as audit, closing(transport), agreeing(transport, policy):
        yield transport, audit


def place_of(folder: Path) -> bytes:
    """Name a folder by chance, once: who was started again from it is no second process of the same party."""
    path = folder / "place"
    with suppress(OSError, ValueError):
        if len(found := bytes.fromhex(path.read_text(encoding="ascii"))) == PLACE:
            return found
    replace_file(path, os.urandom(PLACE).hex().encode(), mode=0o600)
    return place_of(folder)


def said(audit: AuditLog, server: str, hello: Hello) -> bytes:
    """Write a hello, after its line in the audit."""
    text = write_envelope(hello)
    audit.append(
        "hello", server=server, samples=hello.samples, bytes=len(text), sha256=hashlib.sha256(text).hexdigest()
    )
    return text


def welcomed(transport: PartyTransport, hello: bytes, policy: Policy) -> Welcome:
    """Say hello; return what the server says of its job, within the sizes that the policy allows."""
    try:
        welcome = read_envelope(Welcome, transport.hello(hello))
    except RunOver:
        leave(transport)
        raise
    policy.check_sizes(parties=max(parties_of(welcome), welcome.number + 1), classes=welcome.classes)
    if hashlib.sha256(welcome.job.encode()).digest() != welcome.manifest:
        raise Refused("the job is not the one that its hash names: the server is broken or lies")
    if welcome.successor and transport.told(welcome.successor):
        line = key_text(welcome.successor[:KEY])
        log.warning("the server announces a new key, which is trusted from now on: write %s after --server", line)
    return welcome


def parties_of(welcome: Welcome) -> int:
    """Count the parties as their server does: up to the highest number, for those of an edge need not begin at 0."""
    return max(welcome.members.values(), default=welcome.number) + 1


def alive(work: Callable[[], T], sign: Callable[[], object], every: float) -> T:
    """Do work, giving a sign of life while it lasts.

    The work stays in this thread: a process that it starts ends with the thread that started it.
    """
    done = threading.Event()

    def live() -> None:
        while not done.wait(every):
            with suppress(Exception):  # a server that is away now may be back when the work is done
                sign()

    threading.Thread(target=live, daemon=True).start()
    try:
        return work()
    finally:
        done.set()
