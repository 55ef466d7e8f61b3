"""What a select learns is the same in every runtime: what parties report, and of a hidden sum nothing single."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import atoll
from atoll.core.effects import Replies
from atoll.core.method import History, Pick, Population, Select
from atoll.core.tree import Tree
from atoll.core.world import World
from atoll.data.federated import Federated

TOLD: list[set[str]] = []


@dataclass(frozen=True)
class Curious(Select):
    """Ask everybody, and write down what is told of single parties."""

    def expected(self, parties: int) -> int:
        return parties

    def pick(self, t: int, population: Population, history: History, memory: Tree, world: World) -> Pick:
        return Pick(np.arange(len(population)))

    def learn(self, memory: Tree, pick: Pick, replies: Replies) -> Tree:
        TOLD.append(set(replies.each))
        return memory


@pytest.fixture(scope="module")
def digits() -> Federated:
    return atoll.data.load("digits").split(6, by="iid", seed=0)


RING = [atoll.Clip(1.0), atoll.Average(), atoll.Ring()]
CLIPPED = atoll.Channel([atoll.Clip(1.0), atoll.Average()])


@pytest.mark.parametrize("combine", [atoll.SecureSum(), atoll.LightSum()], ids=["secure", "light"])
@pytest.mark.parametrize("protocols", [False, True], ids=["fast", "protocol"])
def test_a_hidden_sum_tells_nothing_single(combine: object, protocols: bool, digits: Federated) -> None:
    job = atoll.Job(atoll.FedAvg(atoll.models.softmax()), Curious(), atoll.Channel(RING, combine), rounds=1)
    TOLD.clear()
    atoll.simulate(job, digits, workers=0, protocols=protocols)
    assert not any(TOLD)
    assert len(TOLD) == 1


def test_what_only_a_simulation_knows_of_parties_is_not_told(digits: Federated) -> None:
    TOLD.clear()
    run = atoll.simulate(
        atoll.Job(atoll.FedAvg(atoll.models.softmax()), Curious(), CLIPPED, rounds=1), digits, workers=0
    )
    assert not any(TOLD)
    assert len(TOLD) == 1
    assert any("clipped" in fact for fact in run.facts), "there was something to be told"
