"""Parties with models of three libraries learn from each other's scores of public samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from parts.distil import FedMD, JaxNet, Net, RidgeNet, TorchNet

import atoll
from atoll.core.method import Contribution, Method, Phase, Population, RoundInfo, State
from atoll.core.party import Group
from atoll.core.tree import Schema, Tree
from atoll.core.world import World
from atoll.data import Federated, Silos
from atoll.testing import check_method, check_part

NETS: tuple[Net, ...] = (JaxNet(), *([TorchNet()] if find_spec("torch") else []), RidgeNet())


def some() -> Federated:
    """A party a model; each has samples of four digits only, and all are tested on samples of all ten."""
    (x, y), seen = atoll.data.load("digits").split(1, seed=0).train[0], []
    train, test = np.arange(0, 1000), np.arange(1000, len(y))
    for k in range(len(NETS)):
        mine = [np.flatnonzero(y[train] == (3 * k + digit) % 10)[:40] for digit in range(4)]
        seen.append(np.concatenate(mine))
    offsets = np.cumsum([0, *map(len, seen)])
    rows = np.concatenate(seen)
    tested = np.arange(len(NETS) + 1) * len(test)
    local = Silos(np.tile(x[test], (len(NETS), 1)), np.tile(y[test], len(NETS)), tested)
    return Federated(Silos(x[rows], y[rows], offsets), local=local, classes=10, recipe={"use": "digits"})


@pytest.fixture(scope="module")
def few() -> Federated:
    return some()


def distilled(data: Federated, rounds: int, nets: tuple[Net, ...] = NETS, **more: Any) -> atoll.Run:
    job = atoll.Job(FedMD(nets), atoll.All(), atoll.Channel([atoll.Average()]), rounds)
    return atoll.simulate(job, data, workers=more.pop("workers", 0), **more)


def test_every_model_learns_digits_that_its_party_never_saw(few: Federated) -> None:
    run = distilled(few, 5)
    curve = run.curve("local.accuracy")[1]
    alone = curve[1]  # after the first round: trained, nothing heard
    assert alone < 0.42
    assert curve[-1] > alone + 0.05
    first, last = ([f["each"] for f in run.facts if f["what"] == "evaluation"][t] for t in (1, -1))
    assert all(after > before + 0.02 for before, after in zip(first, last, strict=True))


def test_parameters_of_three_shapes_survive_a_cut(few: Federated, tmp_path: Any) -> None:
    class Cut(Exception):
        pass

    def cut(note: Any) -> None:
        if note.what == "round" and note.facts["round"] == 2:
            raise Cut

    run = distilled(few, 3)
    with pytest.raises(Cut):
        distilled(few, 3, out=tmp_path, sinks=(cut,))
    (folder,) = tmp_path.iterdir()
    resumed = distilled(few, 3, resume=folder)
    assert np.array_equal(resumed.state["scores"], run.state["scores"])
    assert resumed.curve("local.accuracy") == run.curve("local.accuracy")


def test_processes_change_nothing(few: Federated) -> None:
    """Parties of two libraries; a third takes each process seconds to import."""
    nets = (JaxNet(), RidgeNet())
    here, there = (distilled(few, 3, nets, workers=n) for n in (0, 2))
    # They add up in another order where they have other threads.
    assert np.abs(here.state["scores"] - there.state["scores"]).max() < 1e-4


def test_the_state_has_no_model(few: Federated) -> None:
    run = distilled(few, 1)
    assert set(run.params) == {"scores", "t"}
    assert run.params["scores"].shape == (len(FedMD(NETS).samples), 10)


@dataclass(frozen=True)
class Reader(Method):
    """Adds up what it prepared, while what it is told grows from round to round."""

    @property
    def phases(self) -> Mapping[str, Phase]:
        return {"read": Phase(Schema((("total", (1,)),)), mean=False)}

    def init(self, world: World, population: Population) -> State:
        return {"totals": np.zeros(0)}

    def broadcast(self, state: State) -> Tree:
        return {"rest": np.full(1000 * (1 + len(state["totals"])), 7.0)}

    def constant(self, state: State) -> Tree:
        return {"some": np.ones(2000)}

    def prepare(self, constant: Tree, group: Group) -> Sequence[Any]:
        return [constant["some"] for _ in group]

    def client_update(self, broadcast: Tree, group: Group) -> Contribution:
        return Contribution({"total": np.array([[held.sum()] for held in group.cache])}, group.size)

    def server_update(self, state: State, tree: Tree, info: RoundInfo) -> State:
        return {"totals": np.append(state["totals"], tree["total"])}


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_prepared_stays_as_it_was(few: Federated, workers: int) -> None:
    run = atoll.simulate(atoll.Job(Reader(), atoll.All(), atoll.Channel([]), 4), few, workers=workers)
    assert run.state["totals"].tolist() == [2000.0 * len(few)] * 4


def test_laws(few: Federated) -> None:
    check_method(FedMD(NETS), few)
    for net in NETS:
        check_part(net)
