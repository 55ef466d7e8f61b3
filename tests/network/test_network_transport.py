"""The four calls on real sockets: what goes through, what is tried again, how long it takes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.crypto.keys import Refused
from atoll.runtimes.network.messages.calls import HelloFirst, Limits, Times, Unreachable, delays
from atoll.runtimes.network.messages.payload import QuestionPayload, header_of
from atoll.runtimes.network.transport import ServerTransport, refusal
from atoll.runtimes.network.trust.roster import line_of
from atoll.runtimes.network.trust.tls import ServerTLS, Unknown

MB = 1 << 20


def asked(number: str, body: bytes | Path) -> QuestionPayload:
    return QuestionPayload(header_of("question", number, body, b"envelope"), body)


def test_all_four_calls(federation: Any) -> None:
    federation.serve()
    party = federation.party()
    assert party.hello(b"hi") == b"alice: hi"
    body = os.urandom(20 * MB)
    federation.service.line("alice").put(asked("q1", body))
    with party.pull() as question:
        assert question.header.envelope == b"envelope"
        assert question.body.read() == body
    answer = federation.folder / "answer"
    answer.write_bytes(body[::-1])
    assert party.push(header_of("answer", "q1", answer), answer) == b"alice q1 20971520"
    assert federation.service.bodies["alice"] == hashlib.sha256(body[::-1]).hexdigest()
    party.leave()
    assert federation.service.calls[-1] == ("goodbye", "alice")


class TooEarly(Refused):
    """A refusal that parties of this release do not know."""

    code = "too_early"


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (Refused("not today"), Refused, "refused"),
        (HelloFirst(), HelloFirst, "hello_first"),
        (Unknown("who is this?"), Unknown, "unknown_key"),
        (TooEarly("come back later"), Refused, "too_early"),
    ],
)
def test_a_refusal_keeps_its_code_and_its_sentence(
    federation: Any, monkeypatch: pytest.MonkeyPatch, error: Refused, kind: type[Refused], code: str
) -> None:
    federation.serve()
    party = federation.party()

    def refuse(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(federation.service, "hello", refuse)
    monkeypatch.setattr(federation.service, "next_question", refuse)
    for call in (lambda: party.hello(b"hi"), party.pull):
        with pytest.raises(Refused) as raised:
            call()
        assert (type(raised.value), raised.value.code, str(raised.value)) == (kind, code, str(error))


@pytest.mark.parametrize("code", [None, b"hello_first", "", "Hello first", "x" * 41, "hello_first\n"])
def test_what_is_no_code_is_a_plain_refusal(code: Any) -> None:
    refused = refusal(code, "no")
    assert (type(refused), refused.code) == (Refused, "refused")


def test_a_slow_server_is_not_called_again_and_again(federation: Any) -> None:
    """A thousand parties that come back at once must wait in line: each new call would make the line longer."""
    calls: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as slow:
        slow.settimeout(0.1)
        ended = threading.Event()

        def accept() -> None:
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    calls.append(slow.accept()[0])

        taking = threading.Thread(target=accept)
        taking.start()
        party = federation.party(address=f"127.0.0.1:{slow.getsockname()[1]}", times=Times(silence=3.0, patience=4.0))
        with pytest.raises(Unreachable):
            party.hello(b"hi")
        ended.set()
        taking.join()
    assert 1 <= len(calls) <= 3
    for call in calls:
        call.close()


def test_a_pull_waits_and_hears_at_once(federation: Any) -> None:
    federation.serve()
    party = federation.party()
    began = time.monotonic()
    assert party.pull(0.5) is None
    assert time.monotonic() - began > 0.25
    threading.Timer(0.3, lambda: federation.service.line("alice").put(asked("q", b"x"))).start()
    with party.pull(20) as question:
        assert question.body.read() == b"x"
    assert time.monotonic() - began < 10


def test_a_second_pull_of_a_party_ends_its_first(federation: Any) -> None:
    federation.serve()
    first: list[Any] = []
    thread = threading.Thread(target=lambda: first.append(list(federation.raw("Pull", 15.0))))
    thread.start()
    time.sleep(0.5)
    assert federation.party().pull(0.1) is None
    thread.join(5)
    assert first == [[]]


def test_a_crowded_server_holds_no_pulls_and_still_answers(federation: Any) -> None:
    federation.let_in(federation.alice, federation.bob)
    federation.serve(limits=Limits(threads=4))
    holder = threading.Thread(target=lambda: federation.party(federation.bob).pull(4))
    holder.start()
    for name in ("x", "y", "z"):
        federation.server._pulls[name] = object()
    began = time.monotonic()
    assert list(federation.raw("Pull", 15.0)) == []
    assert time.monotonic() - began < 3
    assert federation.party().hello(b"hi") == b"alice: hi"
    holder.join()


def test_refusals_and_failures_of_the_service(federation: Any) -> None:
    federation.serve()
    party = federation.party(times=Times(patience=0.2))
    with pytest.raises(Refused, match="alice is not welcome today"):
        party.hello(b"no")
    with pytest.raises(Unreachable, match="its log says why") as failed:
        party.hello(b"fail")
    assert "secret" not in str(failed.value)
    assert party.hello(b"hi") == b"alice: hi"


def test_names_come_from_the_roster_and_keys_only(federation: Any) -> None:
    """Alice's key stands in the roster as someone else, whatever she calls herself."""
    federation.path.write_text(line_of(federation.alice).replace("alice", "house-7"))
    federation.serve()
    call = federation.line(federation.alice).unary_unary("/atoll.v1/Join")
    assert call(b"I am bob", metadata=(("atoll-name", "bob"),), timeout=5) == b"house-7: I am bob"


def test_one_upload_of_a_party_at_a_time(federation: Any) -> None:
    federation.serve()
    federation.service.hold.clear()
    first = threading.Thread(target=lambda: federation.party().push(header_of("a", "1", b"x"), b"x"))
    first.start()
    time.sleep(0.5)
    with pytest.raises(Unreachable, match="another answer of alice"):
        federation.party(times=Times(patience=0.2)).push(header_of("a", "2", b"x"), b"x")
    federation.service.hold.set()
    first.join()
    assert federation.party().push(header_of("a", "2", b"x"), b"x") == b"alice 2 1"


def test_a_party_waits_for_a_server_that_restarts(federation: Any) -> None:
    address = federation.serve()
    party = federation.party(times=Times(patience=30))
    party.hello(b"hi")
    federation.server.stop(0)
    heard: list[bytes] = []
    waiting = threading.Thread(target=lambda: heard.append(party.hello(b"again")))
    waiting.start()
    time.sleep(0.5)
    federation.server = ServerTransport(address, ServerTLS(federation.hub, federation.roster), federation.service)
    assert federation.server.start() == address
    waiting.join(20)
    assert heard == [b"alice: again"]


def test_two_servers_do_not_share_a_port(federation: Any) -> None:
    address = federation.serve()
    with pytest.raises(OSError, match="cannot listen"):
        ServerTransport(address, ServerTLS(federation.hub, federation.roster), federation.service).start()


def test_stopping_wakes_a_pull(federation: Any) -> None:
    federation.serve()
    ended: list[float] = []
    began = time.monotonic()

    def pull() -> None:
        try:
            federation.party(times=Times(patience=0.1)).pull(20)
        except Unreachable:
            ended.append(time.monotonic() - began)

    waiting = threading.Thread(target=pull)
    waiting.start()
    time.sleep(0.5)
    federation.server.stop(5)
    assert time.monotonic() - began < 4
    waiting.join(5)
    assert ended


@given(st.integers(0, 2**64 - 1))
def test_pauses_double_and_are_spread(seed: int) -> None:
    pauses = list(islice(delays(seed), 12))
    assert pauses == list(islice(delays(seed), 12))
    for n, pause in enumerate(pauses):
        longest = min(0.1 * 2**n, 5.0)
        assert longest / 2 <= pause <= longest


def test_pauses_of_many_parties_do_not_meet() -> None:
    third = sorted(list(islice(delays(seed), 6))[5] for seed in range(1000))
    assert third[-1] - third[0] > 1.4
    tenth = [sum(third[0] + k * 0.16 <= pause < third[0] + (k + 1) * 0.16 for pause in third) for k in range(10)]
    assert max(tenth) < 200


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_times_are_positive(value: float) -> None:
    with pytest.raises(ValueError, match="silence="):
        Times(silence=value)


def test_a_channel_that_has_grown_old_is_replaced(federation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    federation.serve()
    party = federation.party()
    monkeypatch.setattr("atoll.runtimes.network.transport.RENEW", -1.0)
    monkeypatch.setattr("atoll.runtimes.network.trust.tls.RENEW", -1.0)
    port = int(federation.address.split(":")[1])
    for _ in range(10):
        assert party.hello(b"hi") == b"alice: hi"
    until = time.monotonic() + 10
    while time.monotonic() < until:
        lines = [c for c in psutil.Process().net_connections() if c.raddr and c.raddr.port == port]
        if len(lines) <= 2:
            return
        time.sleep(0.1)
    raise AssertionError(f"{len(lines)} connections are left of ten")


def test_another_version_is_named(federation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    federation.serve()
    monkeypatch.setattr("atoll.runtimes.network.transport.SERVICE", "atoll.v9")
    with pytest.raises(Refused, match=r"does not speak atoll\.v9: upgrade the older"):
        federation.party().hello(b"hi")
