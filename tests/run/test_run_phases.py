"""Phases of one cohort: who is offline is not asked, and where nobody is left the round begins again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

import atoll
from atoll.core.effects import Cohort, Replies
from atoll.core.method import Contribution, History, Method, Phase, Pick, Population, RoundInfo, Select, State
from atoll.core.party import Group
from atoll.core.tree import Schema, Tree
from atoll.core.world import World
from atoll.data.federated import Federated, Silos
from atoll.select.available import Availability

ASKED: list[tuple[int, list[int]]] = []  # the phase, and who answered it


@dataclass(frozen=True)
class TwoPhases(Method):
    """Ask a cohort twice; the second time only those who answered the first."""

    @property
    def phases(self) -> Mapping[str, Phase]:
        one = Phase(Schema((("one", (1,)),)), mean=True)
        return {"first": one, "second": one._replace(same_cohort=True)}

    def init(self, world: World, population: Population) -> State:
        return {"next": 0, "rounds": 0}

    def phase(self, state: State) -> str:
        return ("first", "second")[int(state["next"])]

    def complete(self, state: State) -> bool:
        return int(state["next"]) == 0

    def broadcast(self, state: State) -> Tree:
        return {"rounds": np.float64(state["rounds"])}

    def client_update(self, broadcast: Tree, group: Group) -> Contribution:
        return Contribution({"one": np.ones((len(group), 1))}, np.ones(len(group)))

    def server_update(self, state: State, tree: Tree, info: RoundInfo) -> State:
        ASKED.append((int(state["next"]), info.parties.tolist()))
        return {"next": 1 - int(state["next"]), "rounds": int(state["rounds"]) + int(state["next"])}


@dataclass(frozen=True)
class Two(Select):
    """Two of those who are online."""

    def expected(self, parties: int) -> int:
        return 2

    def pick(self, t: int, population: Population, history: History, memory: Tree, world: World) -> Pick:
        online = np.arange(len(population.sizes)) if population.online is None else population.online
        return Pick(np.sort(world.public_rng("two", t).permutation(online)[:2]))

    def learn(self, memory: Tree, pick: Pick, replies: Replies) -> Tree:
        return memory


@dataclass(frozen=True)
class HalfThere(Availability):
    """Each party is there every other ask, by chance."""

    drop: float = 0.0

    def online(self, t: int, parties: int, seed: int) -> Cohort | None:
        return np.flatnonzero(World(seed).public_rng("there", t).random(parties) < 0.5)


def test_who_is_offline_is_not_asked_and_a_cohort_that_is_gone_begins_again() -> None:
    data = Federated(Silos(np.zeros((8, 1), np.float32), (np.arange(8) % 2).astype(np.int32), np.arange(9)), classes=2)
    ASKED.clear()
    job = atoll.Job(TwoPhases(), Two(), atoll.Channel([atoll.Average()]), rounds=20, availability=HalfThere())
    run = atoll.simulate(job, data, workers=0)
    asks = [fact for fact in run.facts if fact["what"] in ("round", "empty")]
    for t, fact in enumerate(asks):
        online = HalfThere().online(t, 8, 0)
        assert online is not None
        assert set(fact.get("parties", [])) <= set(online.tolist())
    for (first, before), (second, after) in pairwise(ASKED):
        assert (first, second) != (1, 1)
        assert second == 0 or set(after) <= set(before)
    assert any(len(after) < len(before) for (_, before), (k, after) in pairwise(ASKED) if k)
    begun = sum(phase == 0 for phase, _ in ASKED)
    assert begun > 20, "no round began again"
    assert int(run.state["rounds"]) == 20
    assert len(asks) > 40
