"""A select that writes down what another one does."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.core.effects import Replies
from atoll.core.method import History, Pick, Population, Sampling, Select
from atoll.core.tree import Tree
from atoll.core.world import World

ASKED: list[tuple[list[int], list[int]]] = []  # whom, and who answered; of all diaries of this process


@dataclass(frozen=True)
class Diary(Select):
    """Write down whom another select asks and who answers; with `whole` a cohort counts only if all of it answers."""

    select: Select
    whole: bool = False

    def expected(self, parties: int) -> int:
        return self.select.expected(parties)

    def sampling(self, parties: int) -> Sampling:
        return self.select.sampling(parties)._replace(whole=self.whole)

    def pick(self, t: int, population: Population, history: History, memory: Tree, world: World) -> Pick:
        return self.select.pick(t, population, history, memory, world)

    def start(self, population: Population) -> Tree:
        return self.select.start(population)

    def learn(self, memory: Tree, pick: Pick, replies: Replies) -> Tree:
        ASKED.append((pick.cohort.tolist(), replies.parties.tolist()))
        return self.select.learn(memory, pick, replies)
