"""A server killed at any moment goes on where it was, and its run ends with the bits of one that nobody disturbed."""

from __future__ import annotations

import ctypes
import json
import os
import random
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster import ATOLL, Cluster, job, undisturbed

pytest.importorskip("grpc")

from atoll.runtimes.network.messages.calls import Times
from atoll.runtimes.network.transport import ServerTransport
from atoll.runtimes.network.trust.tls import ServerTLS

ROUNDS = 500  # a twentieth of a second each: so many that ten kills fall into a run
EVENTS = {"create": 0x100, "written": 0x8, "renamed": 0x80, "removed": 0x200}  # of inotify


@contextmanager
def watched(folder: Path, event: str) -> Iterator[Callable[[float], bool]]:
    """Tell as soon as the kernel does that something happens to a file of a folder; gives False where nothing does."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_NONBLOCK)
    try:
        assert libc.inotify_add_watch(fd, os.fsencode(folder), EVENTS[event]) >= 0, os.strerror(ctypes.get_errno())

        def wait(seconds: float) -> bool:
            there, _, _ = select.select([fd], [], [], seconds)
            return bool(there) and len(os.read(fd, 1 << 16)) >= struct.calcsize("iIII")

        yield wait
    finally:
        os.close(fd)


def kill(cluster: Cluster, chance: random.Random, how: str) -> str | None:
    """Start the server and kill it at some moment; None if the run ended before."""
    if how == "start":
        server = cluster.begin()
        time.sleep(chance.uniform(0, 1.5 * (cluster.ready[-1] if cluster.ready else 1.0)))
    else:
        server = cluster.serve()
        if how == "write":
            how = chance.choice(list(EVENTS))
            with watched(cluster.run / "checkpoints", how) as happened:
                for _ in range(chance.randrange(1, 15)):
                    happened(20.0)
        else:
            time.sleep(chance.uniform(0, 6))
    server.send_signal(signal.SIGKILL)
    return how if server.wait(10) == -signal.SIGKILL and not cluster.finished() else None


def test_a_server_that_dies_in_a_handshake_is_not_one_that_refuses(federation: Any) -> None:
    """A party that asks why its call failed hears a reset from either: it waits for this one, and finds it again."""
    dying = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{dying.getsockname()[1]}"
    heard = list[bytes]()
    party = federation.party(address=address, times=Times(patience=30))
    calling = threading.Thread(target=lambda: heard.append(party.hello(b"hi")))
    calling.start()
    for last in (False, True):  # the call, and the question why it failed
        line, _ = dying.accept()
        if last:
            dying.close()
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        line.close()
    side = ServerTLS(federation.hub, federation.roster)
    federation.server = ServerTransport(address, side, federation.service)
    federation.server.start()
    calling.join(30)
    assert heard == [b"alice: hi"]


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="files are watched by inotify")
def test_a_hundred_kills(cluster: Callable[..., Cluster], figure: Callable[[str], None]) -> None:
    right = undisturbed(job(ROUNDS))
    kills, ready, runs, given_up = Counter[str](), list[float](), 0, 0
    while kills.total() < 100:
        chance = random.Random(runs)
        federation = cluster(job(ROUNDS))
        federation.serve().kill()  # the parties have to know the address
        federation.processes[-1].wait(10)
        parties = federation.join_all()
        for _ in range(10):
            done = kill(federation, chance, chance.choice(["clock", "clock", "write", "write", "start"]))
            if done is None:
                break
            kills[done] += 1
            given_up += federation.revive(parties)
            kept, resumed = federation.newest(), len(federation.facts("resume"))
        if done is not None:
            server = federation.serve()
            given_up += federation.revive(parties)
            federation.until(lambda f=federation, n=resumed, k=kept: k < 0 or len(f.facts("resume")) > n)
            if kept >= 0:
                assert federation.facts("resume")[-1]["round"] == kept
            federation.ends(server)
        assert [party.wait(180) for party in parties] == [0, 0, 0]
        assert federation.model() == right
        ready += federation.ready
        runs += 1
        federation.close()
        usual = sorted(ready)[len(ready) // 2]
        figure(f"{kills.total()} kills in {runs} runs, all resumed, all with equal bits: {dict(kills)}")
        figure(f"ready after {usual:.2f} s (median of {len(ready)}), slowest {max(ready):.2f} s")
        figure(f"{given_up} parties had no server for a minute, gave up and were started again")
    assert max(ready) <= 5.0


# A server that kills itself when a method of its hub has done its work, the moment its `said` fits.
DIES = (
    """
import os, signal
from atoll.runtimes.network.server.hub import Hub

once = Hub.{0}

def dies(self, said):
    done = once(self, said)
    if {1}:
        os.kill(os.getpid(), signal.SIGKILL)
    return done

Hub.{0} = dies
"""
    + ATOLL
)
CUT = 2  # the round, counted from 0, in which it dies
ANSWERED = f'said.what == "{{}}" and said.body["t"] == {CUT}'  # all have answered
MERGED = f'said.what == "round" and said.facts["round"] == {CUT + 1}'  # the new model is there, and nobody has kept it
SECURE = 'stages = [{ use = "clip", norm = 1.0 }, "average", { use = "ring", bits = 16 }]\ncombine = "secure_sum"\n'
NOISY = """stages = [
    { use = "clip", norm = 1.0 }, { use = "average", by = "expected" },
    { use = "gaussian", multiplier = 2.0, where = "%s" },
]
"""


# A party that rounds by address, so that the same round gives the same integers: what differs then is the masks.
SEEDED = (
    "from atoll.core.world import World; from atoll.runtimes.network.party.join import join; "
    "join.__kwdefaults__['world'] = World.rehearsed; " + ATOLL
)


def interrupted(federation: Cluster, method: str, when: str, code: str = ATOLL) -> None:
    """Begin a run and see the server die in it."""
    server = federation.serve(code=DIES.format(method, when))
    federation.join_all(code=code)
    assert server.wait(120) == -signal.SIGKILL, federation.said("server")


def sent_twice(federation: Cluster, what: str) -> list[list[dict[str, Any]]]:
    """What each party's audit says that it sent to two such questions, of the round in which the server died."""
    numbers = [n for (n,) in federation.rows(f"SELECT question FROM questions WHERE what = '{what}' AND t = {CUT}")]
    assert len(numbers) == 2
    found = []
    for k in range(federation.parties):
        lines = (federation.folder / f"party-{k}" / "audit.jsonl").read_text().splitlines()
        found.append([line for line in map(json.loads, lines) if line.get("question") in numbers])
    return found


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("step", "gone"), [("masked", False), ("masked", True), ("unmask", False)],
    ids=["all come back", "one is gone", "all come back after the sum"],
)  # fmt: skip
def test_a_secure_sum_cut_short_has_other_masks(cluster: Callable[..., Cluster], step: str, gone: bool) -> None:
    text = job(4, parties=4) + SECURE
    federation = cluster(text, parties=4)
    interrupted(federation, "ask", ANSWERED.format(f"train/secure.{step}"), SEEDED)
    if gone:  # what was masked for four must not be sent again for three
        federation.processes[-1].kill()
        federation.processes[-1].wait(10)
    federation.ends(federation.serve("--parties", str(4 - gone)))
    rounds = {fact["round"]: fact["answered"] for fact in federation.facts("round")}
    assert rounds == {1: 4, 2: 4, 3: 4 - gone, 4: 4 - gone}
    for k, lines in enumerate(sent_twice(federation, "train/secure.masked")[: 4 - gone]):
        before, after = lines
        assert before["sha256"] != after["sha256"]
        assert len(list((federation.folder / f"party-{k}" / "spent").glob("*.spent"))) == 2  # sessions
    if not gone:
        assert federation.model() == undisturbed(text, 4, SEEDED)  # whichever the masks were, they are gone


def test_a_server_killed_after_the_list_was_signed_gets_no_sum_of_others(cluster: Callable[..., Cluster]) -> None:
    """It may have opened the sum of four before it was killed; the sum of three would tell the fourth's vector."""
    federation = cluster(job(2, parties=4) + SECURE, parties=4)
    interrupted(federation, "ask", 'said.what == "train/secure.unmask" and said.body["t"] == 0')
    federation.processes[-1].kill()
    federation.processes[-1].wait(10)
    server = federation.serve("--parties", "3")
    federation.until(lambda: len(federation.facts("round")) > 1)
    tried = federation.facts("round")
    assert {(fact["round"], fact["answered"]) for fact in tried} == {(1, 0)}  # in the same round, and in later ones
    assert "nothing was opened" in tried[0]["aborted"]
    for k in range(3):
        lines = map(json.loads, (federation.folder / f"party-{k}" / "audit.jsonl").read_text().splitlines())
        asked = [line["asked"] for line in lines if line["what"] == "left"]
        assert asked.count("train/secure.consistent") == 1
    federation.join(3)  # whose vector is in the sum that was signed
    federation.ends(server)
    done = [(fact["round"], fact["answered"]) for fact in federation.facts("round") if fact["answered"]]
    assert done == [(1, 4), (2, 4)]


@pytest.mark.nightly
def test_noise_of_a_party_is_drawn_once_for_a_question(cluster: Callable[..., Cluster]) -> None:
    """Two answers with noise of their own would say more than one: the same bytes leave again, and cost nothing."""
    federation = cluster(job(4) + NOISY % "local")
    interrupted(federation, "ask", ANSWERED.format("train/contribute"))
    federation.ends(federation.serve())
    for before, after in sent_twice(federation, "train/contribute"):
        assert before["sha256"] == after["sha256"]
        assert before["epsilon"] == after["epsilon"]


@pytest.mark.nightly
def test_noise_of_the_server_is_drawn_again(cluster: Callable[..., Cluster]) -> None:
    """Parties without noise of their own send the same bits a second time: what differs is the server's."""
    federation = cluster(job(4) + NOISY % "central")
    interrupted(federation, "note", MERGED)
    federation.ends(federation.serve())
    for before, after in sent_twice(federation, "train/contribute"):
        assert before["sha256"] == after["sha256"]
    moved = [fact["update_norm"] for fact in federation.facts("round") if fact["round"] == CUT + 1]
    assert len(moved) == 2
    assert moved[0] != moved[1]


@pytest.mark.nightly
@pytest.mark.parametrize("seconds", [5.0, 12.0, 30.0, 60.0])
def test_a_paused_server_takes_nobody_for_silent(
    cluster: Callable[..., Cluster], figure: Callable[[str], None], seconds: float
) -> None:
    """As after a suspend or a snapshot of its machine: the lines may have gone, the parties have not."""
    federation = cluster(job(60))
    server = federation.serve()
    federation.join_all()
    for at in (10, 30):
        federation.until(lambda at=at: federation.rounds() >= at, pause=0.01)
        server.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        now, began = federation.rounds(), time.monotonic()
        server.send_signal(signal.SIGCONT)
        federation.until(lambda now=now: federation.rounds() > now + 1, pause=0.01)
        figure(f"paused for {seconds:g} s at round {at}: goes on {time.monotonic() - began:.1f} s after it")
    federation.ends(server)
    assert [fact["answered"] for fact in federation.facts("round")] == [3] * 60
