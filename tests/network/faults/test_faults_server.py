"""A server killed at any moment goes on where it was, and its run ends with the bits of one that nobody disturbed."""

from __future__ import annotations

import json
import signal
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

import pytest
from cluster import ATOLL, Cluster, job, undisturbed

pytest.importorskip("grpc")

from atoll.runtimes.network.messages.calls import Times
from atoll.runtimes.network.transport import ServerTransport
from atoll.runtimes.network.trust.tls import ServerTLS


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
    assert server.wait(600) == -signal.SIGKILL, federation.said("server")  # as long as a run may take to end


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
