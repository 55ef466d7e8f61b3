"""A party behind an HTTPS proxy: it goes through where one is configured, and says what a proxy said that refused."""

from __future__ import annotations

import base64
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from atoll.crypto.keys import Refused
from atoll.runtimes.network.messages.calls import Times
from atoll.runtimes.network.trust.proxy import proxy_for

pytest.importorskip("grpc")


class Proxy:
    """A proxy of its own thread: remembers what it was asked, connects or refuses."""

    def __init__(self, answer: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n") -> None:
        self.answer, self.asked, self.through = answer, list[str](), 0
        self.ear = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.ear.getsockname()[1]}"
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = self.ear.accept()
                threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        with contextlib.suppress(OSError), line:
            head = b""
            while b"\r\n\r\n" not in head:
                head += line.recv(4096)
            self.asked.append(head.decode())
            line.sendall(self.answer)
            if b" 200 " not in self.answer:
                return
            host, _, port = head.split()[1].decode().rpartition(":")
            with socket.create_connection((host, int(port))) as far:
                back = threading.Thread(target=self._copy, args=(far, line), daemon=True)
                back.start()
                self._copy(line, far)
                back.join(5)

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(65536):
                self.through += len(chunk)
                sink.sendall(chunk)
            sink.shutdown(socket.SHUT_WR)


@pytest.fixture
def proxies() -> Iterator[Any]:
    made: list[Proxy] = []

    def make(*answer: bytes) -> Proxy:
        made.append(Proxy(*answer))
        return made[-1]

    yield make
    for proxy in made:
        proxy.ear.close()


def test_a_party_goes_through_the_proxy_that_is_configured_and_the_proxy_reads_nothing(
    federation: Any, proxies: Any
) -> None:
    federation.serve()
    proxy = proxies()
    user = proxy.url.replace("http://", "http://ada:p%40ss@")
    party = federation.party(proxy=user)
    assert party.hello(b"good day") == b"alice: good day"
    assert proxy.asked
    assert all(said.startswith(f"CONNECT {federation.address} HTTP/1.1\r\n") for said in proxy.asked)
    assert base64.b64encode(b"ada:p@ss").decode() in proxy.asked[0]
    assert proxy.through > 1000
    before = len(proxy.asked)
    assert federation.party(proxy="none").hello(b"direct") == b"alice: direct"
    assert federation.party().hello(b"direct") == b"alice: direct"
    assert len(proxy.asked) == before


def test_a_proxy_that_refuses_is_named_with_what_it_said_as_text(federation: Any, proxies: Any) -> None:
    federation.serve()
    proxy = proxies(b"HTTP/1.1 403 No\x1b[2J entry\r\nServer: x\r\n\r\n")
    party = federation.party(proxy=proxy.url, times=Times(patience=20.0))
    with pytest.raises(Refused, match=r"does not connect to .*403 No\\x1b\[2J entry.*--proxy none"):
        party.hello(b"good day")


def test_a_stranger_is_still_a_stranger_behind_a_proxy(federation: Any, proxies: Any) -> None:
    federation.serve()
    party = federation.party(federation.mallory, proxy=proxies().url, times=Times(patience=20.0))
    with pytest.raises(Refused, match="does not let mallory in"):
        party.hello(b"good day")


def test_the_environment_is_honoured_unless_it_names_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert proxy_for("server.example") is None
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    assert proxy_for("server.example") == "http://proxy.example:3128"
    assert proxy_for("127.0.0.1") is None
    assert proxy_for("127.0.0.1", "http://other:1") == "http://other:1"
    assert proxy_for("server.example", "none") is None
    monkeypatch.setenv("NO_PROXY", ".example")
    assert proxy_for("server.example") is None
    for wrong in ("proxy:3128", "https://proxy:1", "http://proxy", "socks5://x:1", "http://x:y"):
        with pytest.raises(Refused, match="write http://HOST:PORT"):
            proxy_for("server.example", wrong)
