"""A health endpoint for monitors: GET /health (JSON) and GET /metrics (Prometheus text), on this machine only."""

from __future__ import annotations

import io
import ipaddress
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypedDict

from atoll.crypto.keys import Refused
from atoll.runtimes.network.messages.calls import CannotListen
from atoll.runtimes.network.trust.tls import split

HEAD = 8192  # most bytes of a request
SECONDS = 5.0  # within which a request is here, and an answer gone
CALLERS = 4  # served at a time; whoever comes on top is hung up on
WELL = ("waiting", "running", "finished")
FULL = "full"
VERDICTS = ("accepted", "rejected", "late")
Sample = tuple[dict[str, str], float]
Request = socket.socket | tuple[bytes, socket.socket]


class PartySeen(TypedDict):
    """Whether a party is there, and the seconds since it was last heard of."""

    connected: bool
    silent: float | None


class OpenQuestion(TypedDict):
    """A question that parties may answer now."""

    what: str
    round: int
    seconds: float
    asked: int
    late: list[str]


class Standing(TypedDict, total=False):
    """How it stands between a server and its parties."""

    over: str
    untold: list[str]  # who takes part; when it is over, who does not know that yet
    needed: int  # parties that are waited for now
    awaited: list[str]  # of those, who must be among them and is not there
    refused: Mapping[str, str]  # who does not take part by its own policy, and why
    unwritten: str  # why answers cannot be stored just now
    parties: Mapping[str, PartySeen]
    questions: list[OpenQuestion]
    answers: Mapping[str, int]  # by verdict
    bytes_in: int
    bytes_out: int


class Pace(TypedDict):
    """Rounds of this process, and the seconds they took together."""

    sum: float
    count: int


class ServerStatus(Standing, total=False):
    """All that a server says of itself. A file of an earlier one may lack something."""

    state: str
    reason: str
    round: int
    rounds: int
    idle: float
    epsilon: float | None
    round_seconds: Pace
    rejected: Mapping[str, int]
    pid: int
    began: float
    time: str
    health: str | None


Status = Callable[[], ServerStatus]


class Endpoint:
    """Answers monitors from threads of its own until it is closed. It has no authentication, so no address but ours."""

    def __init__(self, address: str, status: Status) -> None:
        host, port = _own(address)
        try:
            self._server = _Server((host, port), status)
        except OSError as error:
            raise CannotListen(
                f"cannot listen on {address}: {error.strerror}; choose another port with --health"
            ) from None
        self.address = f"{address.rpartition(':')[0]}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="atoll-health", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _own(address: str) -> tuple[str, int]:
    """Host and port of an address of this machine; anything else is refused."""
    try:
        host, port = split(address)
        host = "127.0.0.1" if host == "localhost" else host
        safe = ipaddress.ip_address(host).is_loopback
    except ValueError:
        safe = False
    if not safe:
        raise Refused(
            f"--health {address}: the endpoint has no login, so it is on this machine only: say 127.0.0.1:PORT or "
            "[::1]:PORT, and put the monitor, or a proxy that has one, on the same machine"
        )
    return host, port


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], status: Status) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.status, self._free = status, threading.Semaphore(CALLERS)
        super().__init__(address, _Caller)

    def process_request(self, request: Request, client_address: object) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Request, client_address: object) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Request, client_address: object) -> None:
        """Say nothing of a caller that hung up."""


class _Caller(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "atoll", ""

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BytesIO(self._head())  # all that is ever read of a caller

    def _head(self) -> bytes:
        """Read a request, up to its empty line: within the time and the size that one may have, whatever the pace."""
        until, head = time.monotonic() + SECONDS, b""
        with suppress(OSError):
            while b"\r\n\r\n" not in head and len(head) < HEAD and (left := until - time.monotonic()) > 0:
                self.connection.settimeout(left)
                part = self.connection.recv(HEAD - len(head))
                if not part:
                    break
                head += part
        self.connection.settimeout(SECONDS)
        return head if b"\r\n\r\n" in head else b""

    def do_GET(self) -> None:
        said = self.server.status()
        if self.path == "/health":
            body = {
                "state": said["state"], "reason": said["reason"], "round": said["round"], "rounds": said["rounds"],
                "seconds_since_progress": round(said["idle"], 1), "parties_connected": _connected(said),
            }  # fmt: skip
            self._answer(200 if said["state"] in WELL else 503, "application/json", json.dumps(body) + "\n")
        elif self.path == "/metrics":
            self._answer(200, "text/plain; version=0.0.4; charset=utf-8", metrics(said))
        else:
            self._answer(404, "text/plain; charset=utf-8", "there are /health and /metrics\n")

    def _answer(self, code: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 # the library's name
        """Keep a scrape each few seconds out of the server's log."""


def metrics(said: ServerStatus) -> str:
    """Write a status in Prometheus' text format 0.0.4."""
    lines: list[str] = []
    for name, kind, meaning, samples in _families(said):
        found = list(samples)
        if found:
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{_labels(labels)} {value:.17g}" for labels, value in found]
    # A summary has two names under one head.
    seconds = said["round_seconds"]
    lines += [
        "# HELP atoll_round_seconds How long the rounds of this process took.",
        "# TYPE atoll_round_seconds summary",
        f"atoll_round_seconds_sum {seconds['sum']:.17g}",
        f"atoll_round_seconds_count {seconds['count']}",
    ]
    return "\n".join(lines) + "\n"


def _families(said: ServerStatus) -> Iterator[tuple[str, str, str, list[Sample]]]:
    parties, answers, questions = said.get("parties", {}), said.get("answers", {}), said.get("questions", [])
    verdicts = {verdict: answers.get(verdict, 0) for verdict in (*VERDICTS, *answers)}
    silent = [({"party": name}, p["silent"]) for name, p in parties.items() if p["silent"] is not None]
    late = len({name for question in questions for name in question["late"]})

    def one(value: float | None) -> list[Sample]:
        return [] if value is None else [({}, value)]

    yield "atoll_rounds_done", "gauge", "Rounds of the run that are done.", one(said["round"])
    yield "atoll_disk_full", "gauge", "1 while answers cannot be stored.", one(float(said["state"] == FULL))
    yield "atoll_rounds_planned", "gauge", "Rounds that the job has at most.", one(said["rounds"])
    yield "atoll_idle_seconds", "gauge", "Time since something went on.", one(said["idle"])
    yield "atoll_parties_connected", "gauge", "Parties that gave a sign of life lately.", one(_connected(said))
    yield "atoll_parties_late", "gauge", "Parties that were asked and have not answered yet.", one(late)
    yield "atoll_party_silent_seconds", "gauge", "Time since the last sign of life of a party.", silent
    yield ("atoll_answers_total", "counter", "Answers that came, by what became of them.",
           [({"verdict": verdict}, n) for verdict, n in verdicts.items()])  # fmt: skip
    yield ("atoll_rejected_total", "counter", "Answers that were refused as wrong, by party.",
           [({"party": name}, n) for name, n in said["rejected"].items()])  # fmt: skip
    yield "atoll_received_bytes_total", "counter", "Bytes of answers that came.", one(said.get("bytes_in", 0))
    yield "atoll_sent_bytes_total", "counter", "Bytes of questions that were sent.", one(said.get("bytes_out", 0))
    yield "atoll_epsilon", "gauge", "Epsilon that all rounds so far have spent.", one(said["epsilon"])
    yield "process_start_time_seconds", "gauge", "When the server was started.", one(said["began"])
    yield "process_resident_memory_bytes", "gauge", "Memory of the server.", one(_resident())


def _connected(said: ServerStatus) -> int:
    return sum(party["connected"] for party in said.get("parties", {}).values())


def _labels(labels: Mapping[str, str]) -> str:
    words = [f'{name}="{_escaped(value)}"' for name, value in labels.items()]
    return "{" + ",".join(words) + "}" if words else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _resident() -> int | None:
    """Memory in use, where the system says it in a file."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None
