"""What both ends of the line agree on: the times, the sizes, what a server does with a call, how long to pause."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Protocol

from atoll.core.errors import AtollError
from atoll.core.question import Layout
from atoll.crypto.keys import Refused
from atoll.runtimes.network.messages.payload import CHUNK, Header, QuestionPayload

SERVICE = "atoll.v1"
MESSAGE = 1 << 21  # most bytes of any one message
NOT_ALLOWED = "not_allowed"  # the code of an answer that a party's own policy forbids


@dataclass(frozen=True)
class Times:
    """All the times there are, in seconds, and the one rate: bytes a second of the slowest line that is waited for."""

    wait: float = 20.0  # how long the server holds a pull for which it has no question
    answer: float = 600.0  # how long parties have for an answer; what question and answer take on the line comes on top
    silence: float = 9.0  # after which a line without a sign of life is given up
    grace: float = 5.0  # how long a stopping server lets calls end
    linger: float = 60.0  # how long a server whose run has finished waits for parties that do not know it yet
    patience: float = math.inf  # how long a party tries to reach the server, and a server waits for parties to come
    slowest: float = 32_000.0  # half of what a line should have, since none is always as fast as it is

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if not (0 < value < math.inf or (name == "patience" and value == math.inf)):
                raise ValueError(f"{name}={value}: a time or a rate is positive")

    def moving(self, size: int) -> float:
        """Seconds that so many bytes take on the slowest line."""
        return size / self.slowest

    @property
    def lull(self) -> float:
        """Seconds after which a chunk that does not come is given up, and with it its line."""
        return max(self.silence, 2 * self.moving(CHUNK))


TIMES = Times()


@dataclass(frozen=True)
class Limits:
    """All the sizes there are: no peer can make this process use more."""

    body: int = 1 << 30  # most bytes of a body
    memory: int = 1 << 20  # bytes of a body kept in memory; what is longer goes to a file
    threads: int = 256  # calls served at a time, of which three quarters may be waiting ones
    streams: int = 8  # calls at a time on one connection
    bodies: int = 128  # of all those on their way, sent or taken at a time; others wait for their turn

    @classmethod
    def of(cls, parties: int, answers: Iterable[Layout]) -> Limits:
        """For a server of so many parties, each of which may have a call that waits (more than 2,000 have to poll), and
        of answers laid out so.
        """
        longest = max(layout.max_bytes for layout in answers)
        return cls(body=min(cls.body, longest), threads=min(max(cls.threads, 2 * parties), 4096))


LIMITS = Limits()


class Unreachable(AtollError, ConnectionError):
    """The server does not answer; it may later."""

    code = "unreachable"


class CannotListen(AtollError, OSError):
    """The address is taken or is not this machine's; the sentence says what to choose."""

    code = "cannot_listen"


class HelloFirst(Refused):
    """The server does not know this party yet, because it was started again; the party says hello and goes on."""

    code = "hello_first"

    def __init__(self, sentence: str = "say hello first: the server was started again") -> None:
        super().__init__(sentence)


class Later(AtollError):
    """Not now; the party tries again."""

    code = "later"


class RunOver(Refused):
    """There will be no further question: the run has finished."""

    code = "run_over"


class RunFailed(Refused):
    """There will be no further question: the run has failed; the sentence says why."""

    code = "run_failed"


class Service(Protocol):
    """What the server does with calls. Each may be repeated, and raises Refused with a sentence for the party.

    `next_question` blocks for at most `wait` seconds and gives the same question until it is answered; the body given
    to `answer` is closed afterwards. `here` says that a body of somebody is moving, `unwritten` why something could not
    be stored.
    """

    def hello(self, name: str, hello: bytes) -> bytes: ...
    def next_question(self, name: str, wait: float) -> QuestionPayload | None: ...
    def answer(self, name: str, header: Header, body: IO[bytes]) -> bytes: ...
    def here(self, name: str) -> None: ...
    def goodbye(self, name: str, said: bytes) -> None: ...
    def unwritten(self, why: str) -> None: ...


def delays(seed: int, first: float = 0.1, most: float = 5.0) -> Iterator[float]:
    """Pauses between attempts: twice as long each time up to `most`, each shortened at random by up to a half."""
    generator = random.Random(seed)  # noqa: S311 - spreads callers in time, hides nothing
    longest = first
    while True:
        yield float(longest * generator.uniform(0.5, 1.0))
        longest = min(2 * longest, most)


def settings(times: Times) -> list[tuple[str, int]]:
    half = int(1000 * max(times.silence / 2, times.moving(CHUNK)))  # an answer to a ping waits for the chunk before it
    return [
        ("grpc.max_receive_message_length", MESSAGE),
        ("grpc.max_send_message_length", MESSAGE),
        ("grpc.max_metadata_size", 1 << 14),
        # What is read ahead of a body does not grow with the line, so that many uploads do not fill the memory.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", 1 << 16),
        # A message that grows when it is unpacked would pass the limit above.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        ("grpc.keepalive_time_ms", half),
        ("grpc.keepalive_timeout_ms", half),
        ("grpc.http2.ping_timeout_ms", half),
        ("grpc.http2.max_pings_without_data", 0),
    ]
