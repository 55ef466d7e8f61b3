"""Every runtime obeys the law of runtimes; in a simulation who is lost, late or offline is absent."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.core.effects import Ask, checkpoint, drive, note
from atoll.core.party import Handler, Remembered, Samples
from atoll.core.question import Layout, Leaf, Question
from atoll.core.world import World
from atoll.crypto.keys import Refused
from atoll.data.federated import Federated
from atoll.journal import Journal
from atoll.runtimes.local.simulator import Simulator
from atoll.runtimes.local.worker import Chunk, Worker
from atoll.testing import Echo, Loopback, check_runtime


@dataclass
class Calm:
    """A world in which everybody answers, the lower numbers first."""

    gone: tuple[int, ...] = ()

    def lost(self, who: Any, t: int) -> Any:
        return np.isin(who, self.gone)

    def latency(self, who: Any, t: int) -> Any:
        return np.asarray(who, float)


@pytest.fixture
def made() -> Iterator[list[Simulator]]:
    simulators: list[Simulator] = []
    yield simulators
    for simulator in simulators:
        simulator.close()


@pytest.mark.parametrize(("workers", "loop"), [(0, False), (0, True), (1, False), (3, False)])
def test_simulator_is_a_runtime(workers: int, loop: bool, made: list[Simulator]) -> None:
    def make(handlers: Mapping[str, Handler], samples: Samples) -> Simulator:
        args: Any = {"availability": Calm(), "journal": Journal(), "workers": workers, "loop": loop}
        made.append(Simulator(handlers, {"train": samples}, World(), **args))
        return made[-1]

    check_runtime(make)


def test_loopback_is_a_runtime() -> None:
    check_runtime(Loopback)


def test_the_network_is_a_runtime(tmp_path: Path) -> None:
    """A hub on a real socket, and eleven parties with a line of their own. (Ray's: tests/runtimes.)"""
    pytest.importorskip("grpc")
    from atoll.runtimes.network.messages.calls import Times
    from atoll.runtimes.network.messages.envelope import AnswerHead, Hello, QuestionHead, read_envelope, write_envelope
    from atoll.runtimes.network.messages.payload import Header, header_of
    from atoll.runtimes.network.messages.trees import read_tree, write_tree
    from atoll.runtimes.network.server.hub import Hub
    from atoll.runtimes.network.server.store import Store
    from atoll.runtimes.network.transport import PartyTransport, ServerTransport
    from atoll.runtimes.network.trust.tls import Insecure

    times = Times(wait=5.0, answer=60.0, silence=30.0, grace=0.2, patience=5.0)
    data = Layout({"x": Leaf("float32", (1,)), "y": Leaf("int32", ())})
    answers = Layout({"vector": Leaf("float32", (1, 5)), "asked": Leaf("float64", (1,)), "me": Leaf("int64", (1,))})

    question = Question("contribute", Layout({"rows": Leaf("float32", (11, 5)), "t": Leaf("int")}), answers)

    def take_part(line: PartyTransport, me: int, worker: Worker) -> None:
        memory: Remembered | None = None
        with suppress(Refused):  # it is over
            while True:
                payload = line.pull()
                if payload is None:
                    continue
                with payload:
                    head, body = read_envelope(QuestionHead, payload.header.envelope), payload.body.read()
                tree = read_tree(body, len(body))
                answer = worker.answer(Chunk(head.what, head.t, np.array([me]), memory, ()), tree)
                memory, sent = Remembered(np.ones(1, bool), answer.memory), write_tree(answer.each)
                made = header_of("answer", "x", sent)
                about = AnswerHead(head.run, head.number, made.size, made.sha256, 0.0)
                line.push(Header(made.kind, made.id, made.size, made.sha256, write_envelope(about)), sent)

    with ExitStack() as stack:

        def make(handlers: Mapping[str, Handler], samples: Samples) -> Hub:
            names = [f"party{k}" for k in range(len(samples.offsets) - 1)]
            store = stack.enter_context(Store(tmp_path))
            store.enrol([(name, f"key of {name}") for name in names])
            store.create("run")
            store.move("run", "running")
            hub = Hub(
                "run", store, Journal(), Worker({}, {}, World()), {"contribute": question}, data=data, job="",
                manifest=bytes(32), roster=lambda: {m.name: m.key for m in store.members()}, times=times,
            )  # fmt: skip
            server = ServerTransport("127.0.0.1:0", Insecure("server"), hub, times=times, folder=tmp_path)
            address = server.start()
            stack.callback(server.stop)
            worker = Worker(handlers, {"train": samples}, World())
            for me, name in enumerate(names):
                line = PartyTransport(address, Insecure(name), times=times)
                stack.callback(line.close)
                line.hello(write_envelope(Hello(name, 1, data)))
                thread = threading.Thread(target=take_part, args=(line, me, worker))
                thread.start()
                stack.callback(thread.join, 30)
            stack.callback(hub.end, "the test is over")
            return hub

        check_runtime(make, exact=False)


def test_folds_have_the_same_bits_for_any_number_of_workers(made: list[Simulator]) -> None:
    rows = np.random.default_rng(0).normal(size=(40, 1000)).astype(np.float32)
    samples = atoll.data.Silos(np.zeros((40, 1)), np.zeros(40, np.int32), np.arange(41))
    sums = []
    for workers in (0, 1, 2, 5):
        args: Any = {"availability": Calm(), "journal": Journal(), "workers": workers}
        made.append(Simulator({"contribute": Echo()}, {"train": samples}, World(), **args))
        ask = Ask(np.arange(40), "contribute", {"rows": rows, "t": 0}, fold=("vector",))
        sums.append(made[-1].ask(ask).sums["vector"].tobytes())
    assert len(set(sums)) == 1


def test_the_lost_are_absent_and_enough_is_enough(made: list[Simulator]) -> None:
    samples = atoll.data.Silos(np.zeros((9, 1)), np.zeros(9, np.int32), np.arange(10))
    args: Any = {"availability": Calm((1, 5)), "journal": Journal()}
    made.append(Simulator({"contribute": Echo()}, {"train": samples}, World(), **args))
    replies = made[0].ask(Ask(np.arange(9), "contribute", {"rows": np.ones((9, 2)), "t": 0}, goal=4))
    assert replies.parties.tolist() == [0, 2, 3, 4]
    assert replies.facts["lost"] == 2


def test_who_answers_after_the_deadline_is_absent(made: list[Simulator]) -> None:
    """Party k takes k seconds."""
    samples = atoll.data.Silos(np.zeros((9, 1)), np.zeros(9, np.int32), np.arange(10))
    args: Any = {"availability": Calm((1,)), "journal": Journal()}
    made.append(Simulator({"contribute": Echo()}, {"train": samples}, World(), **args))
    body = {"rows": np.ones((9, 2)), "t": 0}
    replies = made[0].ask(Ask(np.arange(9), "contribute", body, within=4.0))
    assert replies.parties.tolist() == [0, 2, 3, 4]
    assert replies.facts["lost"] == 5
    few = made[0].ask(Ask(np.arange(9), "contribute", body, within=4.0, goal=2))
    assert few.parties.tolist() == [0, 2]
    assert not len(made[0].ask(Ask(np.arange(5, 9), "contribute", body, within=4.0)))


def test_a_program_may_only_ask_keep_and_note() -> None:
    async def program() -> int:
        await note("hello", a=1)
        await checkpoint({"t": 0})
        return 3

    runtime = Loopback({}, atoll.data.Silos(np.zeros((1, 1)), np.zeros(1), np.arange(2)))
    assert drive(program(), runtime) == 3
    assert runtime.notes[0].facts == {"a": 1}
    assert runtime.kept == [{"t": 0}]


def test_over_selection_completes_rounds_despite_dropouts(digits: Federated) -> None:
    """papers.md, target 16 (d): 130 % over-selection with 10 % drop-out completes at least 99 % of rounds."""
    job = atoll.Job(
        atoll.FedAvg(atoll.models.softmax(), batch=None), atoll.Oversample(atoll.Count(50), 1.3), rounds=200,
        eval_every=200, availability=atoll.Always(drop=0.1),
    )  # fmt: skip
    data = atoll.data.pooled(digits, 300, 2, seed=0)
    rounds = [f for f in atoll.simulate(job, data).facts if f["what"] == "round"]
    assert np.mean([f["answered"] >= 50 for f in rounds]) >= 0.99
    assert all(f["asked"] == 65 for f in rounds)


def test_offline_parties_are_not_asked(digits: Federated) -> None:
    from atoll.core.method import History, Population

    online = atoll.Flaky(0.5).online(3, 1000, seed=1)
    assert online is not None
    assert 400 < len(online) < 600
    for select in (
        atoll.All(),
        atoll.Uniform(0.1),
        atoll.Poisson(0.3),
        atoll.BySize(20),
        atoll.Oversample(atoll.Count(30)),
    ):
        pick = select.pick(0, Population(np.ones(1000), online), History(), {}, World(0))
        assert np.isin(pick.cohort, online).all()
        assert (np.diff(pick.cohort) > 0).all()
