"""What tests of the network share: a server on loopback with its roster, a service that remembers calls, figures."""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import msgspec
import pytest

from atoll.crypto.keys import Refused
from atoll.runtimes.network.messages.calls import Times
from atoll.runtimes.network.transport import PartyTransport, ServerTransport
from atoll.runtimes.network.trust.roster import RosterFile, line_of, new_key, peer_of
from atoll.runtimes.network.trust.tls import PartyTLS, ServerTLS

FIGURES = pytest.StashKey[list[str]]()


class Echo:
    """Answers a hello with itself, hands out what the test puts in, keeps digests of what it is given."""

    def __init__(self) -> None:
        self.questions: dict[str, queue.Queue[Any]] = {}
        self.calls: list[tuple[Any, ...]] = []
        self.bodies: dict[str, str] = {}
        self.seen: set[str] = set()
        self.hold = threading.Event()
        self.hold.set()

    def line(self, name: str) -> queue.Queue[Any]:
        return self.questions.setdefault(name, queue.Queue())

    def hello(self, name: str, hello: bytes) -> bytes:
        self.calls.append(("hello", name, hello))
        if hello == b"no":
            raise Refused(f"{name} is not welcome today")
        if hello == b"fail":
            raise RuntimeError("a secret of the server")
        return name.encode() + b": " + hello

    def next_question(self, name: str, wait: float) -> Any:
        try:
            return self.line(name).get(timeout=wait) if wait else self.line(name).get_nowait()
        except queue.Empty:
            return None

    def answer(self, name: str, header: Any, body: IO[bytes]) -> bytes:
        self.hold.wait(10)
        digest = hashlib.sha256()
        while chunk := body.read(1 << 20):
            digest.update(chunk)
        self.calls.append(("answer", name, header.id))
        self.bodies[name] = digest.hexdigest()
        return f"{name} {header.id} {header.size}".encode()

    def here(self, name: str) -> None:
        self.seen.add(name)

    def goodbye(self, name: str, said: bytes) -> None:
        self.calls.append(("goodbye", name))

    def unwritten(self, why: str) -> None:
        self.calls.append(("unwritten", why))


class Federation:
    """A server called hub with the party alice in its roster; mallory has a key, and is in nobody's roster."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hub, self.alice, self.bob, self.mallory = (
            new_key(folder / "keys", name) for name in ("hub", "alice", "bob", "mallory")
        )
        self.pin = peer_of(line_of(self.hub))
        self.path = folder / "roster"
        self.let_in(self.alice)
        self.roster = RosterFile(self.path)
        self.service = Echo()
        self.ends: list[Any] = []

    def let_in(self, *members: Any) -> None:
        self.path.write_text("# who may come\n" + "".join(f"{line_of(member)}\n" for member in members))

    def serve(self, **settings: Any) -> str:
        side = settings.pop("side", None) or ServerTLS(self.hub, self.roster)
        self.server = ServerTransport("127.0.0.1:0", side, self.service, folder=self.folder, **settings)
        self.address = self.server.start()
        return self.address

    def party(self, member: Any = None, **settings: Any) -> Any:
        from atoll.runtimes.network.trust.tls import PartyTLS

        side = settings.pop("side", None) or PartyTLS(member or self.alice, self.pin)
        settings.setdefault("times", Times(patience=1.0))
        end = PartyTransport(settings.pop("address", None) or self.address, side, folder=self.folder, **settings)
        self.ends.append(end)
        return end

    def line(self, member: Any) -> Any:
        """A channel without retries or diagnosis."""
        return PartyTLS(member, self.pin).channel(self.address, [("grpc.use_local_subchannel_pool", 1)])

    def raw(self, call: str, message: Any, member: Any = None) -> Any:
        """One call on such a channel."""
        channel = self.line(member or self.alice)
        if call == "Pull":
            return channel.unary_stream("/atoll.v1/Pull")(msgspec.msgpack.encode(message), timeout=20)
        if call == "Push":
            return channel.stream_unary("/atoll.v1/Push")(message, timeout=20)
        return channel.unary_unary(f"/atoll.v1/{call}")(message, timeout=20)

    def close(self) -> None:
        for end in self.ends:
            end.close()
        if hasattr(self, "server"):
            self.server.stop(0)


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    made = Federation(tmp_path)
    yield made
    made.close()


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Show a line at the end of the session, whether or not the test passes."""
    lines = request.config.stash.setdefault(FIGURES, [])
    return lambda line: lines.append(f"{request.node.name}: {line}")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    lines = config.stash.get(FIGURES, [])
    if lines:
        terminalreporter.section("figures")
        for line in lines:
            terminalreporter.write_line(line)
