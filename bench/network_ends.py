"""The other ends of bench/network.py, each a process of its own: a crowd of simulated parties, servers to push through.

A simulated party has a real connection, real keys and real messages; what it answers is made once and is never trained.
"""

import argparse
import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import numpy as np

from atoll.core.question import Layout
from atoll.crypto.keys import Refused
from atoll.runtimes.network.messages.calls import TIMES, Times, Unreachable, settings
from atoll.runtimes.network.messages.envelope import (
    AnswerHead,
    Hello,
    QuestionHead,
    Welcome,
    read_envelope,
    write_envelope,
)
from atoll.runtimes.network.messages.payload import Header, QuestionPayload, chunks, header_of
from atoll.runtimes.network.messages.trees import write_tree
from atoll.runtimes.network.transport import PartyTransport, ServerTransport
from atoll.runtimes.network.trust.roster import RosterFile, load_key, peer_of
from atoll.runtimes.network.trust.tls import PartyTLS, ServerTLS, certificate, grpc_library

PATIENT = Times(patience=600.0)


class Crowd:
    """Parties that answer every question with the same vector; each writes a line when it has joined or sent."""

    def __init__(self, address: str, server: str, folder: Path, hello: Layout) -> None:
        self.address, self.server, self.folder, self.data = address, peer_of(server), folder, hello
        self.lock = threading.Lock()
        self.canned: tuple[bytes, Header] | None = None

    def say(self, what: str, name: str) -> None:
        with self.lock:
            print(json.dumps([what, name, time.monotonic()]), flush=True)

    def answer(self, layouts: dict[str, Layout]) -> tuple[bytes, Header]:
        """Return what fits the job: a vector of ones, so that its weight is one as well."""
        with self.lock:
            if self.canned is None:
                leaves = layouts["train/contribute"].leaves
                body = write_tree({name: np.ones(leaf.shape or (), leaf.dtype) for name, leaf in leaves.items()})
                self.canned = body, header_of("answer", "canned", body)
            return self.canned

    def party(self, name: str) -> None:
        side = PartyTLS(load_key(self.folder / f"{name}.key"), self.server)
        line = PartyTransport(self.address, side, times=PATIENT, folder=self.folder)
        hello = write_envelope(Hello(name, 1, self.data))
        try:
            while True:
                welcome = read_envelope(Welcome, line.hello(hello))
                self.say("joined", name)
                self.take_part(line, welcome, name)
        except (Refused, Unreachable) as why:
            self.say(str(why), name)
        finally:
            line.close()

    def take_part(self, line: PartyTransport, welcome: Welcome, name: str) -> None:
        """Answer until the server knows this party no more: it was started again, or it is over."""
        body, canned = self.answer(welcome.answers)
        try:
            while True:
                payload = line.pull()
                if payload is None:
                    continue
                with payload:
                    head = read_envelope(QuestionHead, payload.header.envelope)
                envelope = write_envelope(AnswerHead(head.run, head.number, canned.size, canned.sha256, 0.0))
                line.push(Header("answer", f"{head.run}/{head.number}", canned.size, canned.sha256, envelope), body)
                self.say("sent", name)
        except Refused:
            return


def crowd(spec: dict[str, Any]) -> None:
    import atoll
    from atoll.job.assemble import summary_of

    layout = summary_of(atoll.data.build(spec["data"], 0)).sample
    made = Crowd(spec["address"], spec["server"], Path(spec["folder"]), layout)
    threads = [threading.Thread(target=made.party, args=(name,), daemon=True) for name in spec["names"]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Pipe:
    """A service that hands out one body and takes in any."""

    def __init__(self, body: bytes) -> None:
        self.question = QuestionPayload(header_of("question", "pipe", body), body)

    def hello(self, name: str, hello: bytes) -> bytes:
        return b""

    def next_question(self, name: str, wait: float) -> QuestionPayload:
        return self.question

    def answer(self, name: str, header: Header, body: IO[bytes]) -> bytes:
        return b""

    def here(self, name: str) -> None:
        pass

    def goodbye(self, name: str, said: bytes) -> None: ...


def pipes(spec: dict[str, Any]) -> None:
    """Serve a body through Atoll's transport and through bare gRPC streams of the same chunks; print the ports."""
    grpc = grpc_library()
    folder, body = Path(spec["folder"]), os.urandom(spec["size"])
    side = ServerTLS(load_key(folder / "server.key"), RosterFile(folder / "roster"))

    def bare(bind: Any) -> int:
        server = grpc.server(ThreadPoolExecutor(4), options=settings(TIMES))
        handlers = {
            "Pull": grpc.unary_stream_rpc_method_handler(lambda asked, context: chunks(body)),
            "Push": grpc.stream_unary_rpc_method_handler(
                lambda messages, context: str(sum(map(len, messages))).encode()
            ),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", handlers),))
        port = bind(server)
        server.start()
        kept.append(server)
        return port

    kept: list[Any] = []
    ours = ServerTransport("127.0.0.1:0", side, Pipe(body), folder=folder)
    one_way = grpc.ssl_server_credentials([certificate(side.member)])
    ports = {
        "transport": int(ours.start().rpartition(":")[2]),
        "mutual TLS": bare(lambda server: side.bind(server, "127.0.0.1:0")),
        "TLS": bare(lambda server: server.add_secure_port("127.0.0.1:0", one_way)),
        "no TLS": bare(lambda server: server.add_insecure_port("127.0.0.1:0")),
    }
    print(json.dumps(ports), flush=True)
    sys.stdin.read()
    for server in (ours, *kept):
        server.stop(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["crowd", "pipes"])
    parser.add_argument("spec", type=json.loads)
    given = parser.parse_args()
    {"crowd": crowd, "pipes": pipes}[given.what](given.spec)
