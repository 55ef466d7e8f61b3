"""What a peer can cost the server, and whom a party connects to."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
import psutil
import pytest
from faults.proxy import Proxy

import spawn
from atoll.combine.layouts import answer_layout
from atoll.core.wire import Wire
from atoll.crypto.keys import Refused
from atoll.runtimes.network.messages.calls import Limits, Times, Unreachable
from atoll.runtimes.network.messages.payload import CHUNK, Header, QuestionPayload, header_of
from atoll.runtimes.network.trust.roster import line_of

MB = 1 << 20


def asked(number: str, body: bytes | Path) -> QuestionPayload:
    return QuestionPayload(header_of("question", number, body, b"envelope"), body)


def test_lies_are_refused_over_the_line(federation: Any) -> None:
    federation.serve(limits=Limits(body=4 * MB))
    party = federation.party()
    right = header_of("a", "1", b"abc")
    with pytest.raises(Refused, match="at most 4,194,304 are taken"):
        party.push(msgspec.structs.replace(right, size=5 * MB), b"abc")
    with pytest.raises(Refused, match="digest"):
        party.push(msgspec.structs.replace(right, sha256=bytes(32)), b"abc")
    with pytest.raises(Refused, match="more than"):
        party.push(header_of("a", "1", b""), b"abc")
    with pytest.raises(grpc.RpcError, match="without a header"):
        federation.raw("Push", iter([]))
    with pytest.raises(grpc.RpcError, match="seconds it would wait"):
        list(federation.raw("Pull", "soon"))
    with pytest.raises(grpc.RpcError, match="not for ever"):
        list(federation.raw("Pull", float("nan")))
    federation.service.line("alice").put(asked("q", bytes(2 * MB)))
    with pytest.raises(Refused, match="at most 1,048,576 are taken"):
        federation.party(limits=Limits(body=MB)).pull(5)
    assert not federation.service.calls


def test_a_message_over_the_limit_or_packed_small_is_refused(federation: Any) -> None:
    federation.serve()
    with pytest.raises(grpc.RpcError) as refused:
        federation.raw("Join", bytes(3 * MB))
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    packed = federation.line(federation.alice).unary_unary("/atoll.v1/Join")
    for size in (100_000, 1_900_000, 500 * MB // 10):
        with pytest.raises(grpc.RpcError):
            packed(bytes(size), timeout=5, compression=grpc.Compression.Gzip)
    assert not federation.service.calls


def test_a_chunk_that_does_not_come_ends_the_upload(federation: Any) -> None:
    federation.serve(times=Times(slowest=1e6, silence=1.0))
    stuck = threading.Event()

    def messages() -> Iterator[bytes]:
        yield msgspec.msgpack.encode(Header("a", "1", 3 * CHUNK, bytes(32)))
        yield bytes(CHUNK)
        stuck.wait(15)

    began = time.monotonic()
    with pytest.raises(grpc.RpcError) as ended:
        federation.raw("Push", messages())
    stuck.set()
    assert ended.value.code() == grpc.StatusCode.CANCELLED
    assert time.monotonic() - began < 6
    assert federation.party().push(header_of("a", "1", b"x"), b"x") == b"alice 1 1"


def test_an_upload_ends_in_time_however_lively(federation: Any) -> None:
    federation.serve(times=Times(answer=1.5, slowest=1e6))

    def messages() -> Iterator[bytes]:
        yield msgspec.msgpack.encode(Header("a", "1", 1000 * CHUNK, bytes(32)))
        while True:
            time.sleep(0.3)
            yield bytes(CHUNK)

    began = time.monotonic()
    with pytest.raises(grpc.RpcError):
        federation.raw("Push", messages())
    assert time.monotonic() - began < 8


def test_bodies_wait_for_their_turn_and_who_waits_is_there(federation: Any) -> None:
    federation.let_in(federation.alice, federation.bob)
    federation.serve(limits=Limits(bodies=1), times=Times(slowest=1e6, silence=4.0))
    begun, go_on = threading.Event(), threading.Event()

    def messages() -> Iterator[bytes]:
        yield msgspec.msgpack.encode(Header("a", "1", 2 * CHUNK, bytes(32)))
        begun.set()
        yield bytes(CHUNK)
        go_on.wait(15)

    def hold() -> None:
        with pytest.raises(grpc.RpcError):
            federation.raw("Push", messages())

    holder = threading.Thread(target=hold)
    holder.start()
    begun.wait(5)
    time.sleep(0.5)
    got: list[bytes] = []
    waiting = threading.Thread(
        target=lambda: got.append(federation.party(federation.bob).push(header_of("b", "2", b"x"), b"x"))
    )
    waiting.start()
    time.sleep(2.5)
    assert not got
    assert "bob" in federation.service.seen
    go_on.set()
    waiting.join(10)
    holder.join(10)
    assert got == [b"bob 2 1"]


def test_a_slow_upload_lets_others_go_first(federation: Any) -> None:
    federation.let_in(federation.alice, federation.bob)
    federation.serve(limits=Limits(bodies=1), times=Times(slowest=1e6, silence=1.5))
    begun, enough = threading.Event(), threading.Event()

    def messages() -> Iterator[bytes]:
        yield msgspec.msgpack.encode(Header("a", "1", 1000 * CHUNK, bytes(32)))
        while not enough.wait(0.5):  # lively, and endless
            yield bytes(CHUNK)
            begun.set()

    def hold() -> None:
        with pytest.raises(grpc.RpcError):
            federation.raw("Push", messages())

    holder = threading.Thread(target=hold)
    holder.start()
    begun.wait(5)
    try:
        assert federation.party(federation.bob).push(header_of("b", "2", b"x"), b"x") == b"bob 2 1"
        assert holder.is_alive()  # it goes on afterwards
    finally:
        enough.set()
        holder.join(10)


def test_a_party_that_reads_nothing_has_one_turn_however_often_it_asks(federation: Any) -> None:
    """Eight pulls of one party, none of which it reads: only the newest is served, and others have their turn."""
    federation.let_in(federation.alice, federation.bob)
    federation.serve(limits=Limits(bodies=2), times=Times(slowest=1e6, silence=3.0))
    large = asked("q", bytes(32 * MB))
    pulls = []
    for _ in range(8):
        federation.service.line("alice").put(large)
        pulls.append(federation.raw("Pull", 5.0))
        time.sleep(0.2)
    try:
        assert federation.party(federation.bob).push(header_of("b", "2", b"x"), b"x") == b"bob 2 1"
        assert len(federation.server._pulls) == 1
    finally:
        for pull in pulls:
            pull.cancel()


def test_no_body_is_longer_than_the_longest_answer_of_the_job() -> None:
    short, long = (answer_layout(Wire.of(size, 10)) for size in (100, 5000))
    assert Limits.of(10, [short, long]).body == long.max_bytes
    assert Limits.of(10, [answer_layout(Wire.of(10**9, 10))]).body == Limits().body
    assert Limits.of(1000, [short]).threads == 2000


SERVER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from conftest import Echo
from atoll.runtimes.network.messages.calls import Limits, Times
from atoll.runtimes.network.trust.roster import RosterFile, load_key
from atoll.runtimes.network.trust.tls import ServerTLS
from atoll.runtimes.network.transport import ServerTransport
folder = Path(sys.argv[1])
side = ServerTLS(load_key(folder / "keys" / "hub.key"), RosterFile(folder / "roster"))
server = ServerTransport("127.0.0.1:0", side, Echo(), limits=Limits(body=64 << 20), times=Times(slowest=1e6, silence=5))
print(server.start(), flush=True)
sys.stdin.read()
server.stop(0)
"""


@pytest.fixture
def apart(federation: Any) -> Iterator[psutil.Process]:
    """The same server in a process of its own."""
    command = [sys.executable, "-c", SERVER, str(federation.folder), str(Path(__file__).parent)]
    with spawn.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        federation.address = process.stdout.readline().strip()  # type: ignore[union-attr]
        yield psutil.Process(process.pid)
        process.stdin.close()  # type: ignore[union-attr]


def test_large_claims_cost_the_server_no_memory(federation: Any, apart: psutil.Process) -> None:
    party = federation.party()
    party.push(header_of("a", "0", bytes(2 * MB)), bytes(2 * MB))
    before = apart.memory_info().rss
    most = before

    def claim(size: int) -> Iterator[bytes]:
        nonlocal most
        yield msgspec.msgpack.encode(Header("a", "1", size, bytes(32)))
        for _ in range(size // CHUNK):
            most = max(most, apart.memory_info().rss)
            yield bytes(CHUNK)

    for _ in range(3):
        with pytest.raises(grpc.RpcError, match="are taken"):
            federation.raw("Push", claim(300 * MB))
    with pytest.raises(grpc.RpcError, match="digest"):
        federation.raw("Push", claim(60 * MB))  # allowed, and kept on disk while it comes
    assert most - before < 50 * MB


def test_a_server_that_hangs_is_noticed(federation: Any, apart: psutil.Process) -> None:
    party = federation.party(times=Times(slowest=1e6, silence=2.0, patience=0.1))
    party.hello(b"hi")
    apart.suspend()
    try:
        began = time.monotonic()
        with pytest.raises(Unreachable, match="does not answer"):
            party.pull(60)
        assert time.monotonic() - began < 10
    finally:
        apart.resume()
    assert federation.party().hello(b"hi") == b"alice: hi"


def test_half_open_connections_do_not_stop_the_service_and_are_closed(federation: Any, apart: psutil.Process) -> None:
    host, port = federation.address.split(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(200)]
    try:
        for n, each in enumerate(silent):
            if n % 2:
                each.sendall(b"\x16\x03\x01")  # the first bytes of a handshake, and no more
        assert federation.party().hello(b"hi") == b"alice: hi"
        before = apart.memory_info().rss
        until = time.monotonic() + 15  # three times the silence allowed: this machine may be busy
        for each in silent:
            each.settimeout(max(0.1, until - time.monotonic()))
            try:
                while each.recv(1000):
                    pass
            except ConnectionResetError:
                pass
        assert time.monotonic() < until
        assert apart.memory_info().rss - before < 50 * MB
        assert federation.party().hello(b"hi") == b"alice: hi"
    finally:
        for each in silent:
            each.close()


PARTY = """
import json, sys, threading
import psutil
from pathlib import Path
from atoll.runtimes.network.messages.calls import Times
from atoll.runtimes.network.trust.roster import load_key, peer_of
from atoll.runtimes.network.trust.tls import PartyTLS
from atoll.runtimes.network.transport import PartyTransport
folder, address, pin = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
seen = set()
def hook(event, about):
    if event == "socket.connect" or event == "socket.getaddrinfo" and about[0] != "127.0.0.1":
        seen.add(f"{event} {about[1:]}")
sys.addaudithook(hook)
done = threading.Event()
def watch():
    while not done.wait(0.002):
        lines = psutil.Process().net_connections()
        seen.update(f"{c.raddr.ip.removeprefix('::ffff:')}:{c.raddr.port}" for c in lines if c.raddr)
watcher = threading.Thread(target=watch)
watcher.start()
for name in ("alice", "mallory"):
    side = PartyTLS(load_key(folder / "keys" / (name + ".key")), peer_of(pin))
    party = PartyTransport(address, side, times=Times(patience=1))
    try:
        party.hello(b"hi")
        party.pull(0.5)
    except ValueError:
        seen.add("refused")
    party.close()
done.set()
watcher.join()
print(json.dumps(sorted(seen)))
"""


def test_a_party_connects_to_its_server_and_nothing_else(federation: Any) -> None:
    """Also where the environment names a proxy; system calls are watched from outside Python, as are Python's own."""
    address = federation.serve()
    with socket.create_server(("127.0.0.1", 0)) as trap:
        proxy = f"http://127.0.0.1:{trap.getsockname()[1]}"
        environment = {**os.environ, "http_proxy": proxy, "https_proxy": proxy, "grpc_proxy": proxy, "no_proxy": ""}
        command = [sys.executable, "-c", PARTY, str(federation.folder), address, line_of(federation.hub)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=60)
        trap.settimeout(0.1)
        with pytest.raises(TimeoutError):
            trap.accept()
    port = int(address.split(":")[1])
    assert json.loads(done.stdout) == [address, "refused", f"socket.connect {(('127.0.0.1', port),)}"]
    assert not done.stderr


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_slow_line_that_moves_on_is_given_all_the_time_it_needs(federation: Any, way: str) -> None:
    """The body takes longer than an answer may, and a chunk of it longer than silence is borne."""
    times = Times(answer=1.0, silence=1.0, wait=5.0, patience=2.0, slowest=100_000)
    slow = Proxy(federation.serve(times=times), rate=250_000)
    try:
        party, body = federation.party(address=slow.address, times=times), os.urandom(500_000)
        if way == "up":
            party.push(header_of("a", "1", body), body)
            assert federation.service.bodies
        else:
            federation.service.line("alice").put(asked("q", body))
            payload = party.pull(5)
            with payload:
                assert payload.body.read() == body
    finally:
        slow.close()


def test_a_line_below_the_slowest_is_given_up(federation: Any) -> None:
    """Chunks come in time, each of them, but not as many as the setting says: after a while that is enough."""
    times = Times(answer=1.0, silence=3.0, wait=5.0, patience=0.1, slowest=400_000)
    slow = Proxy(federation.serve(times=times), rate=100_000)
    try:
        body = os.urandom(2_000_000)
        began = time.monotonic()
        with pytest.raises(Unreachable):
            federation.party(address=slow.address, times=times).push(header_of("a", "1", body), body)
        assert time.monotonic() - began < 10  # of the 20 s that it would take
        assert not federation.service.bodies
    finally:
        slow.close()
