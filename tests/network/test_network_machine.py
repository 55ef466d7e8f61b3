"""The store against a dictionary: any order of joining, asking, answering, closing, waiting and starting again."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from test_network_store import check_whole, digest

from atoll.runtimes.network.server.store import Store
from atoll.runtimes.network.server.tables import Stranger


class Machine(RuleBasedStateMachine):
    """The store against a dictionary."""

    @initialize()
    def begin(self) -> None:
        self.place = tempfile.TemporaryDirectory()
        self.folder, self.now = Path(self.place.name), 0.0
        self.store = Store(self.folder, clock=lambda: self.now)
        self.store.create("r")
        self.store.move("r", "running")
        self.numbers, self.listed = dict[str, int](), dict[str, str]()
        self.questions = dict[int, dict[str, Any]]()

    @rule(names=st.lists(st.sampled_from("abcdef"), unique=True), salt=st.sampled_from("xy"))
    def enrol(self, names: list[str], salt: str) -> None:
        self.store.enrol([(name, name + salt) for name in names])
        for name in names:
            self.numbers.setdefault(name, len(self.numbers))
        self.listed = {name: name + salt for name in names}

    @rule(name=st.sampled_from("abcdef"), salt=st.sampled_from("xy"), samples=st.integers(0, 2**63 - 1))
    def join(self, name: str, salt: str, samples: int) -> None:
        if self.listed.get(name) == name + salt:
            assert self.store.join(name, name + salt, samples) == self.numbers[name]
        else:
            with pytest.raises(Stranger):
                self.store.join(name, name + salt, samples)

    @rule(asked=st.sets(st.integers(0, 5)), within=st.none() | st.floats(0.1, 5))
    def ask(self, asked: set[int], within: float | None) -> None:
        asked = {party for party in asked if party < len(self.numbers)}
        q = self.store.open_question("r", "train/contribute", len(self.questions), asked, within)
        assert q not in self.questions
        until = float("inf") if within is None else self.now + within
        self.questions[q] = {"asked": asked, "until": until, "open": True, "decided": {}}

    def verdict(self, q: int, party: int, wish: str, body: bytes) -> str:
        asked = self.questions.get(q)
        there = {self.numbers[name] for name in self.listed}
        if asked is None or party not in asked["asked"] or party not in there:
            return "foreign"
        if party in asked["decided"]:
            return "again"
        if not asked["open"]:
            return "closed"
        if self.now > asked["until"]:
            return "late"
        asked["decided"][party] = (wish, body)
        return wish

    @rule(back=st.integers(0, 3), party=st.integers(0, 6), body=st.binary(max_size=3), checkpoint=st.booleans())
    def accept(self, back: int, party: int, body: bytes, checkpoint: bool) -> None:
        q = max(self.questions, default=1) - back
        found = self.store.accept(q, party, digest(body), body if checkpoint else None)
        assert found == self.verdict(q, party, "accepted", body if checkpoint else b"")

    @rule(back=st.integers(0, 3), party=st.integers(0, 6))
    def reject(self, back: int, party: int) -> None:
        q = max(self.questions, default=1) - back
        assert self.store.reject(q, party, "so") == self.verdict(q, party, "rejected", b"")

    @precondition(lambda self: self.questions)
    @rule(back=st.integers(0, 3))
    def close(self, back: int) -> None:
        q = max(max(self.questions) - back, 1)
        self.store.close_question(q)
        self.questions[q]["open"] = False

    @rule(seconds=st.floats(0, 3))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.now = -50.0  # the clock of another process
        self.store = Store(self.folder, clock=lambda: self.now)
        assert self.store.found[:2] == (("r",), tuple(q for q, asked in self.questions.items() if asked["open"]))
        for asked in self.questions.values():
            asked["open"] = False
        self.store.move("r", "running")

    @invariant()
    def agrees(self) -> None:
        assert {m.name: m.number for m in self.store.members()} == self.numbers
        for q, asked in list(self.questions.items())[-2:]:
            found = self.store.answers(q)
            assert [(a.party, a.verdict) for a in found] == sorted((p, w) for p, (w, _) in asked["decided"].items())
            assert all(a.file.read_bytes() == asked["decided"][a.party][1] for a in found if a.file)
            listed = {self.numbers[name] for name in self.listed}
            waited = sorted((asked["asked"] & listed) - asked["decided"].keys()) if asked["open"] else []
            assert list(self.store.waiting(q)) == waited

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            check_whole(self.folder)
            self.place.cleanup()


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
