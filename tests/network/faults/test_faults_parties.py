"""Parties that die, hang or are slow: the others go on, it is said who is missing, and nothing is left behind."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable

import psutil
import pytest
from cluster import Cluster, children, family, job, left_of, undisturbed

pytest.importorskip("grpc")

ENDLESS = 100_000  # rounds of a run that a test ends
SILENCE = 10.0  # seconds without a sign of life, after which a party is not waited for
Figure = Callable[[str], None]


def going(federation: Cluster, rounds: int = 3, answered: int = 3) -> float:
    """Wait until so many further rounds have had so many answers; gives the seconds that took."""
    began, before = time.monotonic(), len(federation.facts("round"))

    def enough() -> bool:
        return sum(f["answered"] >= answered for f in federation.facts("round")[before:]) >= rounds

    federation.until(enough)
    return time.monotonic() - began


def numbers(federation: Cluster) -> list[tuple[int, str]]:
    return federation.rows("SELECT party, name FROM members ORDER BY party")


def halt(federation: Cluster, party: subprocess.Popen[str]) -> list[psutil.Process]:
    """Stop the training of a party in the middle of a round, which then waits for it."""
    stopped = children(party)
    for child in stopped:
        child.suspend()
    before = -1
    while federation.rounds() != before:
        before = federation.rounds()
        time.sleep(1)
    return stopped


def killed_and_back(federation: Cluster, parties: list[subprocess.Popen[str]], k: int) -> tuple[float, float]:
    """Kill a party in a round, see that it is missed, start it again; gives the seconds of missing and of coming."""
    halt(federation, parties[k])
    whole = family(parties[k])
    parties[k].send_signal(signal.SIGKILL)
    noticed = going(federation, 1, 2)
    assert not left_of(whole, 5)
    assert [fact["answered"] for fact in federation.facts("round")][-1] == 2
    federation.until(lambda: not federation.status()["parties"][f"p{k}"]["connected"], 20)
    other = halt(federation, parties[(k + 1) % 3])  # holds the round, so that it is seen in which one it is back
    now, began = federation.rounds(), time.monotonic()
    parties[k] = federation.join(k)
    federation.until(lambda: federation.status()["parties"][f"p{k}"]["connected"])
    back = time.monotonic() - began
    for child in other:
        child.resume()
    going(federation, 1)
    first = next(fact["round"] for fact in federation.facts("round")[now:] if fact["answered"] == 3)
    assert first <= now + 2  # the round that was held ends without it, it is in the next
    return noticed, back


@pytest.mark.nightly
def test_a_killed_party_is_missed_and_is_back_in_the_next_round(cluster: Callable[..., Cluster]) -> None:
    federation = cluster(job(ENDLESS))
    federation.serve()
    parties = federation.join_all()
    going(federation)
    before = numbers(federation)
    killed_and_back(federation, parties, 1)
    assert numbers(federation) == before == [(k, f"p{k}") for k in range(3)]


@pytest.mark.nightly
def test_how_soon_killed_parties_are_missed(cluster: Callable[..., Cluster], figure: Figure) -> None:
    federation = cluster(job(ENDLESS))
    federation.serve()
    parties = federation.join_all()
    going(federation)
    found = [killed_and_back(federation, parties, k % 3) for k in range(6)]
    missed, back = zip(*found, strict=True)
    assert numbers(federation) == [(k, f"p{k}") for k in range(3)]
    figure(f"6 parties killed: missed after {min(missed):.1f} to {max(missed):.1f} s, same numbers, in the next round")
    figure(f"6 parties started again: there after {min(back):.1f} to {max(back):.1f} s, of which most is importing")
    assert max(missed) <= SILENCE


@pytest.mark.nightly
def test_three_of_ten_are_slow(cluster: Callable[..., Cluster], figure: Figure) -> None:
    select = '{ use = "oversample", select = { use = "count", number = 7 }, factor = 1.3 }'
    federation = cluster(job(ENDLESS, parties=10, select=select), parties=10)
    federation.serve()
    parties = federation.join_all()
    going(federation, 20, 7)

    def slowest(since: int) -> float:
        return max(fact["seconds"] for fact in federation.facts("round")[since:])

    usual = slowest(-10)
    asleep = [child for party in parties[:3] for child in children(party)]
    for child in asleep:
        child.suspend()
    begun = len(federation.facts("round"))
    going(federation, 30, 7)
    slow = slowest(begun)
    for child in asleep:
        child.resume()
    for k in range(3):
        federation.until(lambda k=k: "refused: " in federation.said(f"p{k}"))
    reasons = {line.split("refused: ")[1] for k in range(3) for line in federation.said(f"p{k}").splitlines()
               if "refused: " in line}  # fmt: skip
    going(federation, 10, 7)
    silent = [process for party in parties[:3] for process in family(party)]
    for process in silent:
        process.suspend()
    begun, began = len(federation.facts("round")), time.monotonic()
    federation.until(lambda: federation.facts("round")[-1]["asked"] == 7, 2 * SILENCE)
    dropped = time.monotonic() - began
    going(federation, 10, 7)
    stopped = slowest(begun)
    assert all(fact["asked"] == 7 for fact in federation.facts("round")[-9:])
    for process in silent:
        process.resume()
    federation.until(lambda: federation.facts("round")[-1]["asked"] == 10)
    answered = {fact["answered"] for fact in federation.facts("round")[20:]}
    figure(f"10 asked, 7 enough: slowest round {usual:.2f} s, with 3 slow {slow:.2f} s, with 3 stopped {stopped:.2f} s")
    figure(f"stopped ones are asked no more after {dropped:.1f} s; answers in a round: {sorted(answered)}")
    figure(f"late answers are told: {sorted(reasons)}")
    assert max(slow, stopped) < SILENCE / 2
    assert dropped <= SILENCE + 2
    assert min(answered) >= 7
    assert all("closed" in reason for reason in reasons)


def started(federation: Cluster) -> tuple[subprocess.Popen[str], list[subprocess.Popen[str]]]:
    server = federation.serve()
    parties = federation.join_all()
    going(federation)
    return server, parties


@pytest.mark.nightly
def test_a_party_that_is_told_to_end_takes_its_child_along_and_says_goodbye(cluster: Callable[..., Cluster]) -> None:
    federation = cluster(job(ENDLESS))
    _, parties = started(federation)
    whole = family(parties[1])
    assert len(children(parties[1])) == 1
    parties[1].send_signal(signal.SIGTERM)
    assert not left_of(whole, 5)
    federation.until(lambda: [fact["party"] for fact in federation.facts("left")] == ["p1"])
    going(federation, answered=2)


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_every_process_is_killed_in_turn(
    cluster: Callable[..., Cluster], figure: Figure, number: signal.Signals
) -> None:
    federation = cluster(job(ENDLESS))
    server, parties = started(federation)
    after = list[float]()
    for party in parties:
        killed = children(party)
        for child in killed:
            child.send_signal(number)
        assert not left_of(killed, 5)
        after.append(going(federation))  # another child does its work
    figure(f"{number.name} to each child: all three parties are in a round again after at most {max(after):.1f} s")
    after.clear()
    for k, party in enumerate(parties):
        whole = family(party)
        party.send_signal(number)
        assert not left_of(whole, 5)
        after.append(going(federation, 1, 2))
        parties[k] = federation.join(k)
        going(federation)
    figure(f"{number.name} to each party: gone with its child in 5 s, the next round ended in {max(after):.1f} s")
    everybody = [process for party in parties for process in family(party)]
    whole = family(server)
    server.send_signal(number)
    assert not left_of(whole, 15)
    assert federation.status()["state"] == "stopped"
    time.sleep(10)
    assert [party.poll() for party in parties] == [None] * len(parties)  # they wait for a server that comes back
    began = time.monotonic()
    for party in parties:
        party.terminate()
    codes = [party.wait(30) for party in parties]
    ended = time.monotonic() - began
    assert not left_of(everybody, 5)
    figure(f"{number.name} to the server, then SIGTERM to parties: ended with {codes} after {ended:.1f} s")


@pytest.mark.nightly
def test_killed_children_do_not_change_the_model(cluster: Callable[..., Cluster]) -> None:
    federation = cluster(job(60))
    server = federation.serve()
    parties = federation.join_all()
    for rounds, party in zip((5, 20, 35), parties, strict=True):
        federation.until(lambda rounds=rounds: federation.rounds() >= rounds)
        for child in children(party):
            child.kill()
    federation.ends(server)
    assert federation.model() == undisturbed(job(60))
