"""The audit of example-level DP against a party as it takes part over the network; the curious server is the test.

Sizes, and the chance that a test fails though all is well (below 1 in 10⁶): tests/attacks/test_attacks_canary.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grpc")

import atoll
from atoll.attacks.canary import Canaries, audit_examples
from atoll.core.effects import Ask
from atoll.core.tree import Array
from atoll.core.world import World
from atoll.data import build
from atoll.data.federated import Federated
from atoll.job.assemble import agreement_of, assemble, summary_of
from atoll.job.file import dumps, to_table
from atoll.journal.write import Journal
from atoll.runtimes.local.worker import Chunk, Worker
from atoll.runtimes.network.messages.calls import Times
from atoll.runtimes.network.party.assess import assess
from atoll.runtimes.network.party.join import join
from atoll.runtimes.network.party.policy import Policy
from atoll.runtimes.network.party.session import Session
from atoll.runtimes.network.party.spending import epsilon
from atoll.runtimes.network.server.hub import Hub
from atoll.runtimes.network.server.serve import remote
from atoll.runtimes.network.server.store import Store
from atoll.runtimes.network.transport import ServerTransport
from atoll.runtimes.network.trust.tls import Insecure

WHAT, SEED, ASKS, DELTA = "train/contribute", 7, 120, 1e-5
STATED = Canaries(atoll.ExampleDP(1.0, 1.2))
WEAK = replace(STATED, example_dp=atoll.ExampleDP(1.0, 0.3))  # a quarter of the noise
BODY = {"broadcast": {"params": np.zeros(STATED.size + 1, np.float32), "lr": 1.0}}


def recipe(folder: Path) -> dict[str, Any]:
    """The party's data, as its policy names it."""
    return {"use": "saved", "folder": str(Federated(STATED.samples(), kind="real").save(folder / "data"))}


def text_of(canaries: Canaries, data: Mapping[str, Any]) -> str:
    method = replace(canaries.method, model=atoll.models.linear())
    job = atoll.Job(method, atoll.All(), rounds=ASKS, stop=[atoll.Budget(1e6, DELTA)])
    return dumps(to_table(job, data, SEED))


def change(vector: Array) -> Array:
    """What a server reads: the weighted change and its weight."""
    return np.asarray(vector[:-1] / vector[-1])


def test_a_party_states_the_epsilon_that_is_audited(tmp_path: Path) -> None:
    data = recipe(tmp_path)
    session = Session(Policy(allow_plain=True, data=data), text_of(STATED, data), 0, 1, 0)
    assert session.world == signature(join).parameters["world"].default == World.real
    (cost,) = assess(session, "", "").costs.values()
    assert epsilon({cost: 1}, session.policy.delta) == pytest.approx(STATED.stated(DELTA), rel=1e-12)


def worker_answers(worker: Worker, t: int) -> Array:
    """One answer of the process that trains."""
    result = worker.answer(Chunk(WHAT, t, np.array([0]), None, ()), {**BODY, "t": t})
    return change(result.each["vector"][0])


@pytest.mark.parametrize("case", ["real", "from the seed", "a quarter"])
def test_what_a_party_trains_with_keeps_its_promise(case: str, tmp_path: Path) -> None:
    """The worker that `join` makes in its child process. Noise from the seed, or less noise, is found."""
    data = recipe(tmp_path)
    text = text_of(WEAK if case == "a quarter" else STATED, data)
    world = World.rehearsed if case == "from the seed" else World.real
    worker = Session(Policy(allow_plain=True, data=data), text, 0, 1, 0, world).create()
    found = audit_examples(STATED, lambda t: worker_answers(worker, t), seed=SEED, asks=ASKS, delta=DELTA)
    assert (found.looks.caught, found.replays.caught) == (case == "a quarter", case == "from the seed")


@contextmanager
def joined(folder: Path, canaries: Canaries, world: Callable[[int], World]) -> Iterator[Callable[[int], Array]]:
    """Join as `atoll join` does, over loopback; give what the server gets for ask t."""
    data = recipe(folder)
    text, federated = text_of(canaries, data), build(data)
    times = Times(wait=2.0, answer=60.0, silence=20.0, grace=0.2, patience=60.0)
    made = assemble(atoll.Job(canaries.method, atoll.All(), rounds=ASKS), remote(federated, [STATED.size]),
                    SEED, world=world(SEED))  # fmt: skip
    with Store(folder) as store:
        store.enrol([("ada", "key")])
        store.create("run")
        store.move("run", "running")
        hub = Hub(
            "run", store, Journal(), Worker({}, {}, world(SEED)), made.questions(1),
            data=summary_of(federated).sample, classes=0, job=text, manifest=agreement_of(text),
            roster=lambda: {m.name: m.key for m in store.members()}, times=times,
        )  # fmt: skip
        server = ServerTransport("127.0.0.1:0", Insecure("server"), hub, times=times, folder=folder)
        address, policy = server.start(), Policy(allow_plain=True, data=data)

        def take_part() -> None:
            join(address, Insecure("ada"), "ada", policy, folder / "ada", world=world, times=times)

        party = threading.Thread(target=take_part)
        party.start()
        try:
            hub.wait_for(1, 120)
            yield lambda t: change(hub.ask(Ask(np.arange(1), WHAT, {**BODY, "t": t})).each["vector"][0])
        finally:
            hub.end("the test is over")
            party.join(60)
            server.stop()
    assert not party.is_alive()


AT_NIGHT = [pytest.param(case, marks=pytest.mark.nightly) for case in ("from the seed", "a quarter")]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["real", *AT_NIGHT])
def test_a_curious_server_gains_nothing_from_the_seed_over_the_network(case: str, tmp_path: Path) -> None:
    world = World.rehearsed if case == "from the seed" else World.real
    with joined(tmp_path, WEAK if case == "a quarter" else STATED, world) as answer:
        found = audit_examples(STATED, answer, seed=SEED, asks=ASKS, delta=DELTA)
    assert (found.looks.caught, found.replays.caught) == (case == "a quarter", case == "from the seed")
