"""Strangers that pour, drip or hold lines open while a run goes on: little memory, lines closed soon, the run ends."""

from __future__ import annotations

import contextlib
import resource
import socket
import ssl
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from cluster import Cluster, job

from atoll.runtimes.network.trust.roster import NamedIdentity, load_key, new_key
from atoll.runtimes.network.trust.tls import certificate, split

pytest.importorskip("grpc")

MB = 1 << 20
GB = 1 << 30
SOON = 10.0  # seconds
LOOK = 0.25  # seconds between two looks at the lines that the server has open
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"
Figure = Callable[[str], None]


@contextlib.contextmanager
def memory(process: psutil.Process) -> Iterator[Callable[[], float]]:
    """How many bytes a process took at most, above what it has now."""
    before, most, ended = process.memory_info().rss, [0], threading.Event()

    def look() -> None:
        while not ended.wait(0.02):
            most[0] = max(most[0], process.memory_info().rss - before)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield lambda: most[0]
    finally:
        ended.set()
        thread.join()


def context_of(member: NamedIdentity, folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    pem = folder / f"{member.name}.pem"
    pem.write_bytes(b"".join(certificate(member)))
    context.load_cert_chain(pem)
    return context


def first_bytes(context: ssl.SSLContext) -> bytes:
    """What a handshake begins with."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="atoll").do_handshake()
    return outgoing.read()


def pour(open_line: Callable[[], socket.socket], piece: bytes, within: float) -> tuple[int, int, float]:
    """Send a gigabyte, over as many lines as that takes; gives what was taken, in how many lines, and the longest."""
    taken, lines, longest, end = 0, 0, 0.0, time.monotonic() + within
    while taken < GB and time.monotonic() < end:
        began = time.monotonic()
        with contextlib.suppress(OSError), open_line() as line:
            lines += 1
            line.settimeout(2 * SOON)
            while taken < GB:
                taken += line.send(piece)
        longest = max(longest, time.monotonic() - began)
    return taken, lines, longest


def closed_after(
    server: psutil.Process,
    open_line: Callable[[], socket.socket],
    count: int,
    drip: bytes = b"",
    sip: bool = False,
    most: float = 40.0,
) -> list[float]:
    """Seconds for which each line is open, at one byte a second written or read where asked for.

    It is the server's own files that are looked at: who reads slowly hears late that a line was closed.
    """
    lines = [(time.monotonic(), open_line()) for _ in range(count)]
    ports, closed = {line.getsockname()[1]: (began, line) for began, line in lines}, dict[int, float]()
    began, second = time.monotonic(), 0
    while len(closed) < count and time.monotonic() < began + most:
        if time.monotonic() >= began + second:
            for port, (_, line) in ports.items():
                with contextlib.suppress(OSError):  # closed, or nothing to read
                    line.setblocking(False)
                    if drip and port not in closed:
                        line.send(drip[second % len(drip) :][:1])
                    if sip:
                        line.recv(1)
            second += 1
        time.sleep(LOOK)
        held = {c.raddr.port for c in server.net_connections("tcp") if c.raddr}
        closed |= {port: time.monotonic() - ports[port][0] for port in ports.keys() - held - closed.keys()}
    for _, line in lines:
        line.close()
    return sorted(closed.get(port, float("inf")) for port in ports)


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4096, hard)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.nightly
def test_strangers_cost_little_while_a_run_goes_on(
    cluster: Callable[..., Cluster], figure: Figure, tmp_path: Path, many_files: None
) -> None:
    federation = cluster(job(100_000))
    server = federation.serve()
    federation.join_all()
    federation.until(lambda: federation.rounds() >= 50)
    process, place = psutil.Process(server.pid), split(federation.address)
    stranger = context_of(new_key(tmp_path, "stranger"), tmp_path)
    member = context_of(load_key(federation.folder / "p0.key"), tmp_path)

    def plain() -> socket.socket:
        return socket.create_connection(place, timeout=SOON)

    def shaken(context: ssl.SSLContext) -> socket.socket:
        return context.wrap_socket(plain(), server_hostname="atoll")

    def begun(context: ssl.SSLContext) -> socket.socket:
        line = plain()
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        line.sendall(first_bytes(context))
        return line

    def spoken(then: bytes) -> socket.socket:
        line = shaken(member)
        line.sendall(then)
        return line

    def usual(since: int) -> float:
        return statistics.median(fact["seconds"] for fact in federation.facts("round")[since:])

    def alive(what: str, found: str, most: float, since: int) -> None:
        slower = usual(since) / quiet - 1
        figure(f"{what}: {found}; memory +{most / MB:.1f} MB; a round {usual(since):.3f} s ({slower:+.0%})")
        assert most <= 50 * MB
        assert server.poll() is None

    quiet = usual(-40)
    figure(f"before: a round {quiet:.3f} s (median)")
    huge = b"\x16\x03\x01\x40\x00\x01\xff\xff\xff" + bytes(0x4000 - 4)  # a first message that says 16 MB
    attacks: dict[str, tuple[Callable[[], socket.socket], bytes]] = {
        "1 GB without TLS": (plain, bytes(MB)),
        "1 GB by a stranger over TLS": (lambda: shaken(stranger), bytes(MB)),
        "1 GB as a first message": (plain, huge),
    }
    for what, (open_line, piece) in attacks.items():
        since = len(federation.facts("round"))
        with memory(process) as most:
            taken, lines, longest = pour(open_line, piece, 60)
            found = f"{taken / MB:.0f} MB in {lines} lines, the longest open for {longest:.1f} s"
        alive(what, found, most(), since)
        assert longest <= SOON
    held: dict[str, tuple[Callable[[], socket.socket], int, bytes, bool]] = {
        "half-open": (plain, 1000, b"", False),
        "a handshake at 1 B/s": (plain, 100, first_bytes(stranger), False),
        "a handshake read at 1 B/s": (lambda: begun(stranger), 100, b"", True),
        "a party that says nothing": (lambda: shaken(member), 5, b"", False),
        "a party that speaks at 1 B/s": (lambda: shaken(member), 5, PREFACE, False),
        "a party that says hello and no more": (lambda: spoken(PREFACE + SETTINGS), 5, b"", False),
        "a party that reads at 1 B/s": (lambda: spoken(PREFACE + SETTINGS), 5, b"", True),
    }
    late = dict[str, float]()
    for what, (open_line, count, drip, sip) in held.items():
        since = len(federation.facts("round"))
        with memory(process) as most:
            after = closed_after(process, open_line, count, drip, sip)
            found = f"{count} lines, closed after {after[0]:.1f} to {after[-1]:.1f} s"
        alive(what, found, most(), since)
        late |= {what: after[-1]} if after[-1] > SOON else {}
    federation.until(lambda: federation.facts("round")[-1]["answered"] == 3)
    assert not late
