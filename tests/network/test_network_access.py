"""Who is let in, at each call and at each message, and how the others are told why not."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import grpc
import pytest

from atoll.crypto.keys import Refused
from atoll.runtimes.network.messages.calls import Times, Unreachable
from atoll.runtimes.network.messages.payload import CHUNK, header_of, messages_of
from atoll.runtimes.network.trust.roster import line_of, peer_of
from atoll.runtimes.network.trust.tls import Insecure, PartyTLS, ServerTLS, Unknown

MB = 1 << 20
SOON = 2.0  # seconds in which whoever may not come in has heard why
Figure = Callable[[str], None]


CALLS: dict[str, Callable[[Any], Any]] = {
    "Join": lambda party: party.hello(b"hi"),
    "Pull": lambda party: party.pull(0.1),
    "Push": lambda party: party.push(header_of("a", "1", b"x"), b"x"),
    "Leave": lambda party: party.leave(),
}


def test_there_are_no_other_calls(federation: Any) -> None:
    federation.serve()
    for call in ("Stop", "Roster", ""):
        with pytest.raises(grpc.RpcError) as refused:
            federation.raw(call, b"")
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("call", CALLS)
def test_who_may_call(federation: Any, figure: Figure, call: str) -> None:
    """A stranger and a party that was struck out are refused every call, each party that stands there none."""
    federation.serve()
    party, stranger = federation.party(), federation.party(federation.mallory)
    CALLS[call](party)
    began = time.monotonic()
    with pytest.raises(Refused, match="does not let mallory in"):
        CALLS[call](stranger)
    soon(began, figure)
    before = list(federation.service.calls)
    federation.let_in(federation.bob)
    with pytest.raises(Unknown, match="not in the server's roster"):
        CALLS[call](party)  # on the connection it has
    with pytest.raises(Refused, match="does not let alice in"):
        CALLS[call](federation.party())
    assert federation.service.calls == before
    CALLS[call](federation.party(federation.bob))


@pytest.mark.parametrize("call", CALLS)
def test_an_unreadable_roster_lets_nobody_in_for_a_while(federation: Any, call: str) -> None:
    federation.serve()
    party = federation.party(times=Times(patience=0.1))
    federation.path.write_text("alice")
    before = list(federation.service.calls)
    with pytest.raises(Unreachable, match="cannot read its roster just now"):
        CALLS[call](party)
    assert federation.service.calls == before
    federation.let_in(federation.alice)
    CALLS[call](party)


def test_an_empty_roster_lets_nobody_in(federation: Any) -> None:
    federation.let_in()
    federation.serve()
    with pytest.raises(Refused, match="does not let alice in"):
        federation.party().hello(b"hi")
    with pytest.raises(Unknown, match="not in the server's roster"):
        federation.party(federation.hub).hello(b"hi")  # the server itself gets through the handshake, and no further
    assert not federation.service.calls


def test_a_struck_party_ends_at_its_next_chunk(federation: Any) -> None:
    federation.serve()
    body = os.urandom(3 * CHUNK)
    go = threading.Event()

    def messages() -> Iterator[bytes]:
        for n, message in enumerate(messages_of(header_of("a", "1", body), body)):
            if n == 2:
                federation.let_in(federation.bob)
                go.wait(1)
            yield message

    with pytest.raises(grpc.RpcError) as refused:
        federation.raw("Push", messages())
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert not federation.service.calls


def test_a_struck_party_ends_its_wait(federation: Any, figure: Figure) -> None:
    federation.serve()
    pull = federation.raw("Pull", 15.0)
    struck = list[float]()

    def strike() -> None:
        struck.append(time.monotonic())
        federation.let_in(federation.bob)

    threading.Timer(0.3, strike).start()
    with pytest.raises(grpc.RpcError) as refused:
        list(pull)
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
    soon(struck[0], figure)


def soon(began: float, figure: Figure) -> None:
    took = time.monotonic() - began
    figure(f"refused after {took:.2f} s")
    assert took <= SOON


def refusal(party: Any, figure: Figure) -> str:
    began = time.monotonic()
    with pytest.raises(Refused) as refused:
        party.hello(b"hi")
    soon(began, figure)
    return str(refused.value)


def test_another_server_is_not_trusted(federation: Any, figure: Figure) -> None:
    federation.serve()
    side = PartyTLS(federation.alice, peer_of(line_of(federation.mallory).replace("mallory", "hub")))
    assert "is not hub: its key is not" in refusal(federation.party(side=side), figure)
    assert not federation.service.calls


def test_certificates_that_have_expired(federation: Any, figure: Figure) -> None:
    federation.serve()
    old = timedelta(hours=-1)
    assert "certificate of alice has expired" in refusal(
        federation.party(side=PartyTLS(federation.alice, federation.pin, lasts=old)), figure
    )
    federation.server.stop(0)
    federation.serve(side=ServerTLS(federation.hub, federation.roster, old))
    assert "certificate of the server" in refusal(federation.party(), figure)
    assert not federation.service.calls


def test_plaintext_and_tls_do_not_mix(federation: Any, figure: Figure) -> None:
    federation.serve()
    assert "speaks TLS: leave --insecure out" in refusal(federation.party(side=Insecure("alice")), figure)
    federation.server.stop(0)
    federation.serve(side=Insecure())
    assert "does not speak TLS" in refusal(federation.party(), figure)
    assert not federation.service.calls
    assert federation.party(side=Insecure("alice")).hello(b"hi") == b"alice: hi"
    with pytest.raises(grpc.RpcError) as refused, grpc.insecure_channel(federation.address) as channel:
        channel.unary_unary("/atoll.v1/Join")(b"", timeout=5)
    assert "name=''" in refused.value.details()


def test_nobody_there(federation: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        party = federation.party(address=f"127.0.0.1:{free.getsockname()[1]}", times=Times(patience=0.3))
        for call in CALLS.values():
            with pytest.raises(Unreachable, match="does not answer"):
                call(party)
