"""A party that is away when a run ends is told when it is back: by the server that stays, or by one started again."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("grpc")

from faults.proxy import Proxy
from test_network_quorum import SMALL, status
from test_network_runs import Federation
from test_network_trust import MINE, TIMES

from atoll.runtimes.network.messages.calls import Times
from atoll.runtimes.network.party.join import join
from atoll.runtimes.network.party.policy import Policy
from atoll.runtimes.network.server.farewell import Farewell, OverService
from atoll.runtimes.network.transport import ServerTransport
from atoll.runtimes.network.trust.tls import Insecure


def test_a_farewell_waits_for_those_who_have_not_left_and_no_longer_than_it_may() -> None:
    late = Farewell(["ada", "ben"])
    late.came("cleo")
    late.left("ben")
    began = time.monotonic()
    late.wait(0.3)
    assert 0.3 <= time.monotonic() - began < 5
    assert late.names == ["ada", "cleo"]
    threading.Timer(0.1, lambda: [late.left(name) for name in late.names]).start()
    late.wait(60)
    assert time.monotonic() - began < 30
    assert late.names == []


def test_a_server_whose_run_has_ended_tells_whoever_calls_and_is_told_that_it_is_known(tmp_path: Path) -> None:
    late = Farewell(["ada", "ben"])
    server = ServerTransport("127.0.0.1:0", Insecure("server"), OverService("all done", late), times=Times(grace=0.2))
    try:
        policy = Policy(allow_plain=True, data=MINE)
        assert join(server.start(), Insecure("ada"), "ada", policy, tmp_path, times=TIMES) == "all done"
    finally:
        server.stop(0)
    assert late.names == ["ben"]


@pytest.mark.nightly
@pytest.mark.parametrize("again", [False, True], ids=["the server stays", "it is started again"])
def test_a_party_whose_line_is_cut_when_the_run_ends_is_told_when_it_is_back(tmp_path: Path, again: bool) -> None:
    """c is cut off while rounds go on. The others finish without it, and end; c waits, says so, and is told later."""
    federation = Federation(tmp_path, SMALL.replace("rounds = 4", "rounds = 60"))
    linger = "1" if again else "300"
    try:
        server = federation.serve("--linger", linger)
        line, direct = Proxy(federation.address), federation.address
        others = [federation.join(name) for name in "ab"]
        federation.address = line.address
        away = federation.join("c")
        federation.address = direct
        federation.until(lambda: sum(fact["what"] == "round" for fact in federation.facts()) >= 2)
        line.cut()
        assert [party.wait(120) for party in others] == [0, 0]
        federation.until(lambda: status(federation)["state"] == "finished")
        assert status(federation)["untold"] == ["c"]
        assert (tmp_path / "run" / "report.html").is_file(), "nobody waits for c to read it"
        federation.until(lambda: "this party waits" in (tmp_path / "c.log").read_text())
        assert away.poll() is None
        if again:
            assert server.wait(60) == 0
            command = ("serve", "job.toml", "--roster", "roster", "--key", "server.key", "--run", "run")
            server = federation.start(*command, "--address", direct, "--linger", "300", log="again.log")
            federation.until(lambda: "c, which may not know that, is told" in (tmp_path / "again.log").read_text())
        assert server.poll() is None
        line.mend()
        assert away.wait(60) == 0
        assert "the run is over: all 60 rounds done" in (tmp_path / "c.log").read_text()
        assert server.wait(60) == (2 if again else 0)  # a run that has ended is not served again
        facts = [json.loads(text) for text in (tmp_path / "run" / "facts.jsonl").read_text().splitlines()]
        assert facts[-1]["what"] == "end"
        assert status(federation)["untold"] == []
    finally:
        federation.close()
