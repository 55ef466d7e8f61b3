"""Bad lines, repeated and reordered answers, wrong clocks: the model has the bits of a run over a good line."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime

import pytest
from cluster import ATOLL, Cluster, job, undisturbed
from proxy import Proxy

import spawn

pytest.importorskip("grpc")

ROUNDS = 40
Figure = Callable[[str], None]


@pytest.fixture
def line() -> Iterator[Callable[..., Proxy]]:
    made = list[Proxy]()

    def make(to: str, **faults: float) -> Proxy:
        made.append(Proxy(to, **faults))  # type: ignore[arg-type] # chances and a delay
        return made[-1]

    yield make
    for proxy in made:
        proxy.close()


def counted(federation: Cluster) -> Counter[str]:
    """Answers by verdict; of a party and question there is one at most."""
    rows = federation.rows("SELECT question, party, verdict FROM answers")
    assert len({row[:2] for row in rows}) == len(rows)
    return Counter(verdict for _, _, verdict in rows)


def whole(federation: Cluster, rounds: int) -> None:
    """All parties are in each round, each counted once, and the bits are right."""
    assert [fact["answered"] for fact in federation.facts("round")] == [federation.parties] * rounds
    assert counted(federation) == {"accepted": federation.parties * rounds}
    assert federation.model() == undisturbed(job(rounds))


@pytest.mark.nightly
def test_a_line_that_breaks_again_and_again_changes_nothing(
    cluster: Callable[..., Cluster], line: Callable[..., Proxy]
) -> None:
    federation = cluster(job(10))
    server = federation.serve()
    bad = line(federation.address, reset=0.03, delay=0.005)
    federation.join_all(address=bad.address)
    federation.ends(server)
    assert bad.seen["reset"] >= 2
    whole(federation, 10)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_line_that_breaks_twenty_times(
    cluster: Callable[..., Cluster], line: Callable[..., Proxy], figure: Figure, seed: int
) -> None:
    """About one connection in ten does not live through its handshake."""
    federation = cluster(job(ROUNDS))
    server = federation.serve()
    bad = line(federation.address, seed=seed, reset=0.02)
    began = time.monotonic()
    federation.join_all(address=bad.address)
    federation.ends(server, 600)
    figure(f"{dict(bad.seen)}: {ROUNDS} rounds in {time.monotonic() - began:.0f} s, equal bits, no answer twice")
    whole(federation, ROUNDS)


@pytest.mark.nightly
def test_a_slow_line(cluster: Callable[..., Cluster], line: Callable[..., Proxy], figure: Figure) -> None:
    federation = cluster(job(ROUNDS))
    server = federation.serve()
    bad = line(federation.address, delay=0.2)
    federation.join_all(address=bad.address)
    federation.ends(server, 600)
    took = sorted(fact["seconds"] for fact in federation.facts("round"))
    figure(
        f"200 ms each way: a round takes {took[len(took) // 2]:.2f} s (median) and {took[-1]:.2f} s at most; equal bits"
    )
    whole(federation, ROUNDS)


@pytest.mark.nightly
def test_a_line_that_loses(cluster: Callable[..., Cluster], line: Callable[..., Proxy], figure: Figure) -> None:
    federation = cluster(job(ROUNDS))
    server = federation.serve()
    bad = line(federation.address, delay=0.1, loss=0.1)
    federation.join_all(address=bad.address)
    federation.ends(server, 600)
    took = sorted(fact["seconds"] for fact in federation.facts("round"))
    figure(
        f"{dict(bad.seen)}, 100 ms each way: a round takes {took[len(took) // 2]:.2f} s (median) and {took[-1]:.2f} s "
        "at most; equal bits"
    )
    assert bad.seen["lost"] >= ROUNDS
    whole(federation, ROUNDS)


@pytest.mark.nightly
@pytest.mark.parametrize("seconds", [3.0, 6.0])
def test_a_short_cut_changes_nothing(
    cluster: Callable[..., Cluster], line: Callable[..., Proxy], figure: Figure, seconds: float
) -> None:
    federation = cluster(job(ROUNDS))
    server = federation.serve()
    bad = line(federation.address)
    federation.join_all(address=bad.address)
    for at in (5, 20):
        federation.until(lambda at=at: federation.rounds() >= at)
        bad.cut()
        time.sleep(seconds)
        began, now = time.monotonic(), federation.rounds()
        bad.mend()
        federation.until(lambda now=now: federation.rounds() > now + 1, pause=0.01)
        figure(f"cut for {seconds:g} s at round {at}: goes on {time.monotonic() - began:.2f} s after it is mended")
    federation.ends(server)
    whole(federation, ROUNDS)


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["cut", "stall_all"])
def test_a_long_cut_and_half_open_lines_end_and_nothing_is_counted_twice(
    cluster: Callable[..., Cluster], line: Callable[..., Proxy], figure: Figure, how: str
) -> None:
    """Who is silent for long is left out of a round: the bits differ, and it is said how many were missing."""
    rounds = 1000  # enough for all to come back before the first who does has ended the run alone
    federation = cluster(job(rounds))
    server = federation.serve()
    bad = line(federation.address)
    parties = federation.join_all(address=bad.address)
    federation.until(lambda: federation.rounds() >= 10)
    began, now = time.monotonic(), len(federation.facts("round"))
    getattr(bad, how)()
    if how == "cut":
        time.sleep(25)
        bad.mend()
    federation.until(lambda: any(fact["answered"] < 3 for fact in federation.facts("round")[now:]))
    federation.until(lambda: federation.facts("round")[-1]["answered"] == 3)
    back = time.monotonic() - began
    federation.ends(server)
    assert [party.wait(180) for party in parties] == [0, 0, 0]
    answered = Counter(fact["answered"] for fact in federation.facts("round"))
    figure(f"{how}: all three are in a round again after {back:.1f} s; rounds by answers {dict(answered)}")
    assert answered.total() == rounds
    assert counted(federation)["accepted"] == sum(k * n for k, n in answered.items())


@pytest.mark.nightly
@pytest.mark.parametrize("faults", [{"stall": 0.02}, {"reset": 0.1}], ids=["stalls", "resets"])
def test_a_line_that_hardly_works(
    cluster: Callable[..., Cluster], line: Callable[..., Proxy], figure: Figure, faults: dict[str, float]
) -> None:
    """Parties are away for longer than they are waited for: the run ends all the same, every answer counted once."""
    federation = cluster(job(ROUNDS))
    server = federation.serve()
    bad = line(federation.address, **faults)
    began = time.monotonic()
    federation.join_all(address=bad.address)
    federation.ends(server, 900)
    answered = Counter(fact["answered"] for fact in federation.facts("round"))
    figure(f"{dict(bad.seen)}: {ROUNDS} rounds in {time.monotonic() - began:.0f} s; rounds by answers {dict(answered)}")
    assert counted(federation)["accepted"] == sum(k * n for k, n in answered.items())


# The kernel's own network in place of the proxy: what is sent is lost, as where a cable is pulled.


@pytest.fixture
def network() -> Iterator[list[str]]:
    """A network of its own for processes that are started with these words before their command."""
    keeper = spawn.start(["unshare", "-n", "sleep", "1000"], stderr=subprocess.PIPE)
    enter = ["nsenter", "-t", str(keeper.pid), "-n"]
    time.sleep(0.5)
    try:
        if subprocess.run([*enter, "ip", "link", "set", "lo", "up"], capture_output=True, check=False).returncode:
            pytest.skip("a network of one's own is not permitted here")
        yield enter
    finally:
        keeper.kill()
        keeper.communicate()


@pytest.mark.nightly
@pytest.mark.skipif(not shutil.which("nsenter") or not shutil.which("ip"), reason="needs nsenter and ip")
def test_a_pulled_cable(cluster: Callable[..., Cluster], network: list[str], figure: Figure) -> None:
    federation = cluster(job(ROUNDS))
    server = federation.serve(before=network)
    federation.join_all(before=network)
    federation.until(lambda: federation.rounds() >= 10)
    subprocess.run([*network, "ip", "link", "set", "lo", "down"], check=True)
    time.sleep(5)
    began, now = time.monotonic(), federation.rounds()
    subprocess.run([*network, "ip", "link", "set", "lo", "up"], check=True)
    federation.until(lambda: federation.rounds() > now + 1, pause=0.01)
    figure(f"the interface is down for 5 s: goes on {time.monotonic() - began:.1f} s after it is up, equal bits")
    federation.ends(server)
    whole(federation, ROUNDS)


@pytest.mark.nightly
@pytest.mark.skipif(not shutil.which("tc"), reason="needs tc")
def test_lost_packets(cluster: Callable[..., Cluster], network: list[str], figure: Figure) -> None:
    words = ["tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "100ms", "loss", "10%"]
    if subprocess.run([*network, *words], capture_output=True, check=False).returncode:
        pytest.skip("this kernel has no netem")
    federation = cluster(job(ROUNDS))
    server = federation.serve(before=network)
    federation.join_all(before=network)
    federation.ends(server, 600)
    took = sorted(fact["seconds"] for fact in federation.facts("round"))
    figure(f"a tenth of all packets lost, 100 ms each way: a round takes {took[len(took) // 2]:.2f} s (median)")
    whole(federation, ROUNDS)


# A party that sends each answer a hundred times, and all it ever sent again, in any order, also to a server that was
# started again in between.
PARROT = (
    """
import random, sys
from collections import Counter
from atoll.crypto.keys import Refused
from atoll.runtimes.network.messages.envelope import Receipt, read_envelope
from atoll.runtimes.network.transport import PartyTransport

once, sent, heard, chance = PartyTransport.push, [], Counter(), random.Random(0)

def push(self, header, body):
    receipt = once(self, header, body)
    sent.append((header, body))
    for old, text in chance.choices(sent[-5:], k=50) + [sent[-1]] * 50:
        try:
            said = read_envelope(Receipt, once(self, old, text))
            heard["counted" if said.accepted else said.reason] += 1
        except Refused as reason:
            heard[str(reason)] += 1
    print("heard", sum(heard.values()), dict(heard), file=sys.stderr, flush=True)
    return receipt

PartyTransport.push = push
"""
    + ATOLL
)


@pytest.mark.nightly
def test_answers_sent_a_hundred_times_and_across_restarts_count_once(
    cluster: Callable[..., Cluster], figure: Figure
) -> None:
    federation = cluster(job(ROUNDS))
    server = federation.serve()
    parties = [federation.join(0, code=PARROT), federation.join(1), federation.join(2, code=PARROT)]
    for rounds in (10, 25):
        federation.until(lambda rounds=rounds: federation.rounds() >= rounds)
        server.send_signal(signal.SIGKILL)
        server.wait(10)
        server = federation.serve()
    federation.ends(server)
    assert parties[1].wait(180) == 0
    assert federation.model() == undisturbed(job(ROUNDS))
    counted(federation)
    for k in (0, 2):
        heard = [line for line in federation.said(f"p{k}").splitlines() if line.startswith("heard ")]
        assert len(heard) >= ROUNDS - 1  # the run may have ended before the last was sent so often
        figure(f"p{k} {heard[-1]}; equal bits")


# A process whose clock is so many seconds wrong. gRPC counts its deadlines with Python's clock and waits for them with
# that of C, which is right: both must be the same, so it is told the right time. What a wrong clock does in handshakes
# is seen from the other end: by the times in the certificates that such a process makes.
CLOCK = (
    """
import datetime, sys, time

right, Right = time.time, datetime.datetime

def wrong():
    asks = sys._getframe().f_back
    return right() + (0 if asks is None or asks.f_globals["__name__"].startswith("grpc") else {})

class Wrong(Right):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)

time.time, datetime.datetime = wrong, Wrong
"""
    + ATOLL
)
HOUR = 3600


@pytest.mark.nightly
def test_clocks_that_are_an_hour_wrong(cluster: Callable[..., Cluster], figure: Figure) -> None:
    """The server is an hour ahead, the parties an hour ahead, an hour behind and right."""
    federation = cluster(job(ROUNDS))
    server = federation.serve(code=CLOCK.format(HOUR))
    wrong = [HOUR, -HOUR, 0]
    for k, seconds in enumerate(wrong):
        federation.join(k, code=CLOCK.format(seconds))
    federation.ends(server)
    whole(federation, ROUNDS)
    now = time.time()
    for k, seconds in enumerate(wrong):
        last = (federation.folder / f"party-{k}" / "audit.jsonl").read_text().splitlines()[-1]
        off = datetime.fromisoformat(json.loads(last)["time"]).timestamp() - now
        assert abs(off - seconds) < HOUR / 4  # the clock of this party really was wrong
    figure("a server an hour ahead, parties an hour ahead and an hour behind: equal bits, nothing refused")


@pytest.mark.nightly
@pytest.mark.parametrize(("mbit", "rounds"), [(0.5, 2), (5.0, 10)])
def test_a_narrow_line_is_enough(
    cluster: Callable[..., Cluster], line: Callable[..., Proxy], figure: Figure, mbit: float, rounds: int
) -> None:
    """A model of 1.2 MB each way: at 0.5 Mbit/s a question is on its way for 19 s, and so is an answer."""
    text = job(rounds, hidden=4000)
    federation = cluster(text)
    server = federation.serve()
    parties = [line(federation.address, rate=mbit * 125_000) for _ in range(3)]
    for k, narrow in enumerate(parties):
        federation.join(k, address=narrow.address)
    federation.ends(server, 600)
    took = sorted(fact["seconds"] for fact in federation.facts("round"))
    figure(
        f"{mbit:g} Mbit/s a party, 1.2 MB each way: a round takes {took[len(took) // 2]:.0f} s; every answer arrives"
    )
    assert [fact["answered"] for fact in federation.facts("round")] == [3] * rounds
    assert counted(federation) == {"accepted": 3 * rounds}
    assert federation.model() == undisturbed(text)
