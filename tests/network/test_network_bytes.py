"""The bytes of `explain`, of the server's facts, of a party's audit log and at the socket are the same bytes.

What the network adds to them is known from the layout of its protocols, and held against messages that belong to no
job. Two of three parties speak to the server through a line that counts, and join before the last one does: what is
counted is what moves from the first question to the end.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import spawn

pytest.importorskip("grpc")

from cast import Cast, parameters
from counting import CountingProxy

import atoll
from atoll.core.world import World
from atoll.data import build
from atoll.job.assemble import assemble
from atoll.job.file import parse
from atoll.programs import traffic
from atoll.programs.traffic import Traffic, on_line
from atoll.report.units import in_bytes
from atoll.runtimes.network.messages.calls import Times
from atoll.runtimes.network.messages.envelope import AnswerHead, QuestionHead, Receipt, write_envelope
from atoll.runtimes.network.messages.payload import Header, QuestionPayload, header_of

NAMES = ("ada", "ben", "cleo")
ROUNDS = 2
HIDDEN = 'stages = [{ use = "clip", norm = 1.0 }, "average", { use = "ring", bits = 16 }]\ncombine = '
DAILY = {
    "top k, quantised": 'stages = ["weigh", { use = "top_k", fraction = 0.1 }, { use = "quantise", bits = 8 }]',
    "secure sum": f'{HIDDEN}"secure_sum"',
}
NIGHTLY = {
    "plain": "",
    "top k": 'stages = ["weigh", { use = "top_k", fraction = 0.05 }]',
    "random k": 'stages = ["weigh", { use = "random_k", fraction = 0.1 }]',
    "quantised": 'stages = ["weigh", { use = "quantise", bits = 4 }]',
    "sign": 'stages = ["weigh", "sign"]',
    "rotated signs": 'stages = ["weigh", "rotate", { use = "sign", feedback = false, scale = "drive" }]',
    "low rank": 'stages = ["weigh", { use = "low_rank", rank = 60 }]',
    "ring": HIDDEN.replace("combine = ", 'combine = "sum"'),
    "median": 'stages = ["average"]\ncombine = { use = "each", rule = "median" }',
    "adaptive clip": 'stages = [{ use = "clip", norm = 1.0, quantile = 0.5 }, "average"]',
    "buffered": 'stages = ["weigh", { use = "top_k", fraction = 0.1 }]\n'
    'combine = { use = "buffered", buffer_size = 3 }',
    "local noise": 'stages = [{ use = "clip", norm = 1.0 }, "average", '
    '{ use = "gaussian", multiplier = 2.0, where = "local" }, { use = "quantise", bits = 8 }]',
    "secure sum, low rank": HIDDEN.replace("stages = [", 'stages = [{ use = "low_rank", rank = 60 }, ')
    + '"secure_sum"',
    "secure sum, sparse": f'{HIDDEN}{{ use = "secure_sum", sparse = true }}',
    "light sum": f'{HIDDEN}"light_sum"',
    "encrypted sum": f'{HIDDEN}"encrypted_sum"',
    "encrypted sum, two holders": f'{HIDDEN}{{ use = "encrypted_sum", key_holders = 2 }}',
    "encrypted sum, ckks": f'{HIDDEN}{{ use = "encrypted_sum", scheme = "ckks" }}',
}
CHANNELS = {**DAILY, **NIGHTLY}
TIMES = Times(silence=60.0, patience=120.0)  # so that a busy machine adds no signs of life


def job_of(channel: str, parties: int) -> str:
    width = 400 if "encrypted" in channel else 3000  # encryption takes its time
    return f"""
name = "bytes"
rounds = {ROUNDS}
data = {{ use = "digits", clients = {parties}, test = 0.2 }}
method = {{ use = "fedavg", model = {{ use = "mlp", hidden = [{width}] }}, epochs = 1, batch = 100, lr = 0.1 }}
select = "all"
{CHANNELS[channel]}
"""


def take_part(address: str, folder: str, name: str, server: str, policy: str) -> None:
    """Join as everybody does, but for the times."""
    from atoll.runtimes.network.party.join import join
    from atoll.runtimes.network.party.policy import Policy
    from atoll.runtimes.network.trust.roster import load_key, peer_of
    from atoll.runtimes.network.trust.tls import PartyTLS

    credentials = PartyTLS(load_key(Path(folder) / f"{name}.key"), peer_of(server))
    with (Path(folder) / f"{name}.log").open("a", buffering=1) as log:
        join(address, credentials, name, Policy.parse(policy, "the test's policy"), Path(folder) / name, server=server,
             world=World.rehearsed, times=TIMES, say=lambda text: print(text, file=log))  # fmt: skip


class Counted:
    """A cast of which the first and the last party have a line that counts."""

    def __init__(self, folder: Path, parties: int) -> None:
        self.cast = Cast(folder, (NAMES + tuple(f"p{k}" for k in range(parties - 3)))[:parties])
        self.seen = (self.cast.names[0], self.cast.names[-1])
        self.lines: dict[str, CountingProxy] = {}

    def play(self, job: str) -> tuple[Any, dict[str, Counter[str]]]:
        """Return the run, and by party what passed its line after it had joined."""
        from atoll.runtimes.network.trust.roster import line_of

        address, last = self.cast.open(job, times=TIMES), self.cast.names[1]
        self.lines = {name: CountingProxy(address) for name in self.seen}
        recipe = next(line for line in job.splitlines() if line.startswith("data")).partition("= ")[2]

        def join(name: str) -> None:
            to = self.lines[name].address if name in self.lines else address
            args = (to, str(self.cast.folder), name, line_of(self.cast.server), self.cast.policy(name, recipe))
            self.cast.processes[name] = spawn.process(take_part, *args)

        for name in self.cast.names:
            if name != last:
                join(name)
        before = {name: self._waiting(name) for name in self.seen}
        join(last)
        run = self.cast.close(300)
        return run, {name: self.lines[name].moved - before[name] for name in self.seen}

    def _waiting(self, name: str) -> Counter[str]:
        """Wait until a party has joined and waits for a question; return what that took."""
        line, end = self.lines[name], time.monotonic() + 120
        while not [said for said in self.audit(name) if said["what"] == "joined"]:
            assert time.monotonic() < end, self.cast.log(name)
            time.sleep(0.05)
        moved = Counter[str]()
        while moved != line.moved:
            moved = line.moved.copy()
            time.sleep(1.0)
        return moved

    def audit(self, name: str) -> list[dict[str, Any]]:
        path = self.cast.folder / name / "audit.jsonl"
        lines = path.read_text().splitlines() if path.is_file() else []
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def end(self) -> None:
        self.cast.end()
        for line in self.lines.values():
            line.close()


@pytest.fixture
def counted(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Counted]:
    parties = 6 if "sparse" in request.node.name else 3
    made = Counted(tmp_path, parties)
    yield made
    made.end()


def near(one: float, other: float) -> bool:
    return abs(one - other) <= 0.02 * max(one, other)


def bytes_in(text: str) -> float:
    number, unit = text.split()
    return float(number.replace(",", "")) * {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]


def test_what_a_line_adds_is_as_its_protocols_lay_it_out(federation: Any) -> None:
    """Empty messages give the headers, long ones what their frames take; no job is among them."""
    wait = 9  # bytes in which a pull says how long it waits
    proxy = CountingProxy(federation.serve(times=TIMES))
    receipt = write_envelope(Receipt(True))
    federation.service.answer = lambda *_: receipt
    party = federation.party(address=proxy.address, times=TIMES)
    party.hello(b"")

    def exchange(down: bytes, up: bytes, times: int) -> tuple[dict[str, float], dict[str, int]]:
        """Return what passed the line for one question with its answer, and what of it Atoll wrote beside bodies."""
        time.sleep(0.3)
        before = proxy.moved.copy()
        for number in range(times):
            asks, answers = header_of("question", "run/7", down), header_of("answer", "run/7", up)
            asked = QuestionHead("run", number, "train/contribute", number, 600.0, asks.size, asks.sha256)
            said = AnswerHead("run", number, answers.size, answers.sha256, 0.1)
            one, two = (Header(h.kind, h.id, h.size, h.sha256, write_envelope(head))
                        for h, head in ((asks, asked), (answers, said)))  # fmt: skip
            federation.service.line("alice").put(QuestionPayload(one, down))
            with party.pull() as payload:
                assert payload.header.size == len(down)
            party.push(two, up)
        time.sleep(0.3)
        own = {"down": len(msgspec.msgpack.encode(one)) + len(receipt), "up": len(msgspec.msgpack.encode(two)) + wait}
        return {way: moved / times for way, moved in (proxy.moved - before).items()}, own

    try:
        exchange(b"", b"", 3)  # headers of HTTP/2 are told once
        empty, own = exchange(b"", b"", 20)
        wrote, moved = sum(own.values()) / 2, sum(empty.values()) / 2  # either way is about the same
        assert abs(wrote - traffic._OWN) < 0.05 * traffic._OWN
        assert abs(moved - wrote - 2 * traffic._CALL) < 0.05 * 2 * traffic._CALL
        for down, up in ((4_000_000, 0), (0, 4_000_000), (1_000_000, 1_000_000)):
            passed, _ = exchange(bytes(down), bytes(up), 2)
            for way, body, other in (("down", down, up), ("up", up, down)):
                added, derived = passed[way] - body, on_line(body, other, 1) - body
                assert abs(added - derived) < 0.2 * derived, (way, body, other, added, derived)
    finally:
        proxy.close()


@pytest.mark.parametrize("channel", [*DAILY, *(pytest.param(name, marks=pytest.mark.nightly) for name in NIGHTLY)])
def test_four_counts_of_the_same_bytes_agree(channel: str, counted: Counted, figure: Callable[[str], None]) -> None:
    if channel.endswith("ckks"):
        pytest.importorskip("tenseal")
    parties = len(counted.cast.names)
    job = job_of(channel, parties)
    said = parse(job, "the test")
    program = assemble(said.job, build(said.data, said.seed), said.seed, world=World.real(said.seed)).program
    explained = atoll.explain(said.job, build(said.data, said.seed), said.seed, world=World.real(said.seed))
    run, sockets = counted.play(job)

    each, held = program.round_cost
    own, own_held = program.evaluation_cost
    words = re.search(r"a party sends ([\d.,]+ \w+) and receives ([\d.,]+ \w+) in a round", explained)
    assert words
    assert near(bytes_in(words[1]), each.up)
    assert near(bytes_in(words[2]), each.down)
    assert (f"send {in_bytes(own.up)} of sums each time" in explained) == bool(own.up)

    whole = Traffic().plus(each, ROUNDS).plus(own, ROUNDS + 1)  # of one party
    more = Traffic().plus(held, ROUNDS).plus(own_held, ROUNDS + 1)  # of all holders
    facts = Counter[str]()
    for fact in run.facts:
        if fact["what"] == "round" or (fact["what"] == "evaluation" and fact["split"] == "local"):
            facts.update({"up": fact["bytes_up"], "down": fact["bytes_down"]})
    assert near(facts["up"], parties * whole.up + more.up)
    assert near(facts["down"], parties * whole.down + more.down)

    for name in counted.seen:
        left = [line for line in counted.audit(name) if line["what"] == "left"]
        audit = Counter(up=sum(line["bytes"] for line in left), down=sum(line["brought"] for line in left))
        holders = len(program.exchanges["train"].combine.holders(range(parties)))
        expected = whole.plus(more) if name == counted.seen[0] and holders == 1 else whole
        if name == counted.seen[0] and holders > 1:
            continue  # holders differ: the sum of all is among the facts
        both = (expected.up, expected.down)
        for way, body, other in (("up", *both), ("down", *reversed(both))):
            figure(f"{channel}, {name} {way}: explain {body:,}, audit {audit[way]:,}, socket {sockets[name][way]:,}")
            assert near(audit[way], body), (channel, name, way)
            assert near(sockets[name][way], on_line(body, other, expected.questions)), (channel, name, way)
    # In a process of its own, with one core, as parties train: see docs/sharp-edges.md.
    alone = atoll.simulate(said.job, build(said.data, said.seed), said.seed, workers=1)
    assert np.array_equal(parameters(run.params), parameters(alone.params))
