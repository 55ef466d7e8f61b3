"""A hierarchy of real processes: a server, two edges, two parties below each. The numbers of a flat federation."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import spawn

pytest.importorskip("grpc")

from cast import Cast, parameters, simulated
from counting import CountingProxy

import atoll
from atoll.core.wire import Mismatch
from atoll.core.world import World
from atoll.job.assemble import agreement_of, assemble
from atoll.runtimes.network.messages.envelope import Welcome

RECIPE = '{ use = "digits", clients = 6, test = 0.2 }'
JOB = f"""
name = "levels"
rounds = 2
data = {RECIPE}
method = {{ use = "fedavg", model = {{ use = "mlp", hidden = [120, 120] }}, epochs = 1, batch = 10, lr = 0.1 }}
select = "all"
"""


def stand(parent: str, folder: str, name: str, server: str, roster: str, first: int) -> None:
    """Be an edge, in a process of its own."""
    from atoll.runtimes.network.edge import Downstream, edge
    from atoll.runtimes.network.party.policy import Policy
    from atoll.runtimes.network.trust.roster import RosterFile, load_key, peer_of
    from atoll.runtimes.network.trust.tls import PartyTLS, ServerTLS

    place, file = Path(folder), RosterFile(roster)
    up = PartyTLS(load_key(place / f"{name}.key"), peer_of(server))
    rows = file.texts
    below = Downstream("127.0.0.1:0", ServerTLS(up.member, file), rows, None, first)
    policy = Policy(allow_plain=True, allow_semi_honest=True, allow_metrics=True, roster=str(place / "roster"))
    why = edge(parent, up, name, policy, place / name, below, server=server, world=World.rehearsed,
               ready=(place / f"{name}.address").write_text)  # fmt: skip
    (place / f"{name}.ended").write_text(why)


def stand_lying(tell: Callable[[Welcome], Welcome], victim: str, *args: Any) -> None:
    """Be an edge that welcomes one of its parties with something of its own making."""
    from atoll.runtimes.network.messages.envelope import read_envelope, write_envelope
    from atoll.runtimes.network.server.hub import Hub

    hello = Hub.hello

    def lying(hub: Hub, name: str, said: bytes) -> bytes:
        welcome = hello(hub, name, said)
        return write_envelope(tell(read_envelope(Welcome, welcome))) if name == victim else welcome

    Hub.hello = lying  # type: ignore[method-assign]
    stand(*args)


def another_job(welcome: Welcome) -> Welcome:
    job = welcome.job.replace("norm = 1.0", "norm = 1000000000.0")
    return msgspec.structs.replace(welcome, job=job, manifest=agreement_of(job))


def other_numbers(welcome: Welcome) -> Welcome:
    first, second, *_ = (name for name, number in welcome.members.items() if number != welcome.number)
    swapped = {**welcome.members, first: welcome.members[second], second: welcome.members[first]}
    return msgspec.structs.replace(welcome, members=swapped)


class Levels:
    """Edges with their parties; all of them are gone when the test ends."""

    def __init__(
        self, folder: Path, below: int, names: tuple[str, ...] = ("north", "south"), recipe: str = RECIPE
    ) -> None:
        self.top, self.recipe = Cast(folder, names), recipe
        self.under = {}
        for name in self.top.names:
            (folder / f"under-{name}").mkdir()
            self.under[name] = Cast(folder / f"under-{name}", tuple(f"{name}-{k}" for k in range(below)))
        self.edges: list[Any] = []
        self.acts: dict[str, tuple[Any, ...]] = {}  # by edge: what it does instead of standing, and its arguments

    def play(self, job: str, through: Callable[[str], str] = str) -> Any:
        """Serve a job; edges reach the server by the address that `through` gives for its own."""
        from atoll.runtimes.network.trust.roster import line_of, load_key

        parent, count = through(self.top.open(job)), 0
        for name, cast in self.under.items():
            args = (parent, str(self.top.folder), name, line_of(self.top.server), str(cast.roster), count)
            self.edges.append(spawn.process(*self.acts.get(name, (stand,)), *args))
            count += len(cast.names)
        count = 0
        for name, cast in self.under.items():
            said = self.top.folder / f"{name}.address"
            end = time.monotonic() + 120
            while not said.is_file() or not said.read_text():
                assert time.monotonic() < end
                time.sleep(0.05)
            cast.server = load_key(self.top.folder / f"{name}.key")  # who those below take for their server
            for party in cast.names:
                mine = self.recipe.replace(" }", f", party = {count} }}")
                allow = "".join(f"allow_{what} = true\n" for what in ("plain", "semi_honest", "metrics"))
                text = f'{allow}roster = "{cast.roster}"\ndata = {mine}\n'
                cast.join(said.read_text(), party, text)
                count += 1
        return self.top.close(400)

    def end(self) -> None:
        for cast in (self.top, *self.under.values()):
            cast.end()
        for process in self.edges:
            process.kill()
            process.join(10)


@pytest.fixture
def levels(tmp_path: Path) -> Iterator[Levels]:
    made = Levels(tmp_path, 3)
    yield made
    made.end()


@pytest.mark.slow
def test_two_levels_give_what_one_gives(levels: Levels) -> None:
    run = levels.play(JOB)
    assert np.abs(parameters(run.params) - simulated(JOB)).max() < 1e-6
    local = [fact for fact in run.facts if fact["what"] == "evaluation" and fact["split"] == "local"]
    flat = [f for f in _simulated_facts(JOB) if f["what"] == "evaluation" and f["split"] == "local"]
    assert [evaluation["accuracy"] for evaluation in local] == pytest.approx(
        [evaluation["accuracy"] for evaluation in flat]
    )
    rounds = [fact for fact in run.facts if fact["what"] == "round"]
    assert [fact["answered"] for fact in rounds] == [2, 2]


@pytest.mark.nightly
def test_what_edges_send_compressed_is_what_passes_their_line(levels: Levels) -> None:
    """Facts of the server, the edges' audit logs and a count at the socket, all that it takes to join included."""
    lines: list[CountingProxy] = []

    def counted(address: str) -> str:
        lines.append(CountingProxy(address))
        return lines[0].address

    job = JOB.replace("[120, 120]", "[3000]") + 'stages = ["weigh", { use = "quantise", bits = 8 }]\n'
    try:
        run = levels.play(job, counted)
    finally:
        lines[0].close()
    said = [f for f in run.facts if f["what"] == "round" or (f["what"] == "evaluation" and f["split"] == "local")]
    left = [json.loads(line) for name in levels.top.names
            for line in (levels.top.folder / name / "audit.jsonl").read_text().splitlines()]  # fmt: skip
    for way, fact, audit in (("up", "bytes_up", "bytes"), ("down", "bytes_down", "brought")):
        told = sum(f[fact] for f in said)
        assert told == sum(line[audit] for line in left if line["what"] == "left")
        assert told < lines[0].moved[way] < 1.02 * told + 2 * 30_000  # two that join and give signs of life
    assert sum(f["bytes_up"] for f in run.facts if f["what"] == "round") < 1.01 * 4 * 225_012  # a byte a number


@pytest.mark.nightly
@pytest.mark.parametrize("combine", ["secure_sum", "encrypted_sum"])
def test_sums_are_hidden_at_both_levels(tmp_path: Path, combine: str) -> None:
    """Each level has its own protocol: the server sees sums of edges only, an edge sums of its parties."""
    recipe = RECIPE.replace("6", "9")
    stages = '[{ use = "clip", norm = 1.0 }, "average", { use = "ring", bits = 16 }]'
    flat = JOB.replace(RECIPE, recipe).replace('{ use = "mlp", hidden = [120, 120] }', '"softmax"')
    job = flat + f'stages = {stages}\ncombine = "{combine}"\n'
    levels = Levels(tmp_path, 3, ("north", "south", "west"), recipe)
    try:
        run = levels.play(job)
    finally:
        levels.end()
    rounds = [fact for fact in run.facts if fact["what"] == "round"]
    assert [fact["answered"] for fact in rounds] == [3, 3]
    step = 1 / 2**15  # of a number, rounded once at each level
    assert np.abs(parameters(run.params) - simulated(job)).max() < 8 * step
    judged, flat_run = ([f for f in facts if f["what"] == "evaluation" and f["split"] == "local"]
                        for facts in (run.facts, _simulated_facts(job)))  # fmt: skip
    assert [f["parties"] for f in judged] == [3, 3, 3], "of edges, whose parties are hidden in them"
    assert judged[0]["accuracy"] == flat_run[0]["accuracy"], "counts of the first model are added exactly"
    assert not any("each" in f for f in judged)


@pytest.mark.nightly
@pytest.mark.parametrize("tell", [another_job, other_numbers])
def test_whom_its_edge_tells_another_job_or_cohort_gives_nothing(
    tmp_path: Path, tell: Callable[[Welcome], Welcome]
) -> None:
    """An edge is the server of the parties below it, and no more to be believed: their sums are bound to the job."""
    recipe = RECIPE.replace("6", "12")
    flat = JOB.replace(RECIPE, recipe).replace('{ use = "mlp", hidden = [120, 120] }', '"softmax"')
    job = flat + 'stages = [{ use = "clip", norm = 1.0 }, "average", "ring"]\ncombine = "secure_sum"\n'
    levels = Levels(tmp_path, 4, ("north", "south", "west"), recipe)
    levels.acts["north"] = (stand_lying, tell, "north-3")
    try:
        run = levels.play(job)
    finally:
        levels.end()
    assert [fact["answered"] for fact in run.facts if fact["what"] == "round"] == [3, 3]
    under = levels.under["north"]
    assert "another job, vector or cohort" in under.log("north-3")
    contributed = {
        name: sum(bool(json.loads(line).get("contributes")) for line in _audit(under.folder / name))
        for name in under.names
    }
    assert contributed.pop("north-3") == 0
    assert set(contributed.values()) == {2}, "the others' sums are opened without it"


def _audit(folder: Path) -> list[str]:
    return (folder / "audit.jsonl").read_text().splitlines()


@pytest.mark.parametrize(
    ("stages", "combine", "said"),
    [
        ((atoll.Clip(1.0), atoll.Average(), atoll.Gaussian(1.0, "local")), atoll.Sum(), "noise through an edge"),
        ((atoll.Clip(1.0, quantile=0.5), atoll.Average()), atoll.Sum(), "keeps memory at the server"),
        ((atoll.Weigh(),), atoll.Buffered(2), "an edge waits for all"),
    ],
)
def test_what_would_mean_something_else_is_refused(stages: Any, combine: Any, said: str) -> None:
    from atoll.data import build
    from atoll.runtimes.network.edge import check_below

    job = atoll.Job(atoll.FedAvg(atoll.models.softmax()), atoll.All(), atoll.Channel(stages, combine), rounds=2)
    with pytest.raises(Mismatch, match=said):
        check_below(assemble(job, build({"use": "digits", "clients": 6})))


def _simulated_facts(job: str) -> Any:
    from atoll.data import build
    from atoll.job.file import parse

    said = parse(job, "the test")
    return atoll.simulate(said.job, build(said.data, said.seed), said.seed).facts
