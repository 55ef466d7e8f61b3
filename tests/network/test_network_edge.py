"""A hierarchy of real processes: a server, two edges, two parties below each. The numbers of a flat federation."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
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
from atoll.core.tree import Schema
from atoll.core.world import World
from atoll.job.assemble import agreement_of, assemble, summary_of
from atoll.metrics import (
    AUC,
    F1,
    MAE,
    MSE,
    R2,
    Accuracy,
    AveragePrecision,
    BalancedAccuracy,
    LogLoss,
    Perplexity,
    Recall,
    TopKAccuracy,
)
from atoll.runtimes.network.edge import Downstream, check_edge, edge
from atoll.runtimes.network.messages.envelope import Welcome
from atoll.runtimes.network.party.policy import NotAllowed, Policy
from atoll.runtimes.network.trust.tls import Insecure

CLASSES = (AUC(), F1(), Accuracy(), AveragePrecision(), BalancedAccuracy(), LogLoss(), Perplexity(), Recall(),
           TopKAccuracy(3))  # fmt: skip
REAL = (MAE(), MSE(), R2())

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


def stand_heavy(*args: Any) -> None:
    """Be an edge whose vector weighs a thousand times what its parties have."""
    from atoll.runtimes.network.edge import Edge

    honest = Edge._gathered

    def lying(edge: Any, *asked: Any) -> Any:
        said = honest(edge, *asked)
        return {**said, "vector": 1000 * said["vector"]}

    Edge._gathered = lying  # type: ignore[method-assign]
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
        parent, count = through(self.top.open(job)), 0
        for name, cast in self.under.items():
            self.edge(parent, name, count)
            count += len(cast.names)
        count = 0
        for name, cast in self.under.items():
            self.below(name, count)
            count += len(cast.names)
        return self.top.close(400)

    def edge(self, parent: str, name: str, first: int) -> None:
        """Start an edge, whose parties have numbers from `first` on."""
        from atoll.runtimes.network.trust.roster import line_of

        roster = str(self.under[name].roster)
        args = (parent, str(self.top.folder), name, line_of(self.top.server), roster, first)
        self.edges.append(spawn.process(*self.acts.get(name, (stand,)), *args))

    def below(self, name: str, part: int) -> None:
        """Start the parties of an edge, with parts of the data from this one on."""
        for count, party in enumerate(self.under[name].names, part):
            self.party(name, party, count)

    def party(self, edge: str, name: str, part: int) -> None:
        """Start a party below an edge as soon as that listens."""
        from atoll.runtimes.network.trust.roster import load_key

        cast, said = self.under[edge], self.top.folder / f"{edge}.address"
        end = time.monotonic() + 120
        while not said.is_file() or not said.read_text():
            assert time.monotonic() < end
            time.sleep(0.05)
        cast.server = load_key(self.top.folder / f"{edge}.key")  # who those below take for their server
        mine = self.recipe.replace(" }", f", party = {part} }}")
        allow = "".join(f"allow_{what} = true\n" for what in ("plain", "semi_honest", "metrics"))
        cast.join(said.read_text(), name, f'{allow}roster = "{cast.roster}"\ndata = {mine}\n')

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
def test_an_edge_that_states_more_weight_than_its_parties_have_is_refused_by_name(levels: Levels) -> None:
    levels.acts["north"] = (stand_heavy,)
    run = levels.play(JOB)
    assert [fact["answered"] for fact in run.facts if fact["what"] == "round"] == [1, 1]
    refused = [fact for fact in run.facts if fact["what"] == "rejected"]
    assert {fact["party"] for fact in refused} == {"north"}
    declared = [fact["samples"] for fact in run.facts if fact["what"] == "joined" and fact["party"] == "north"][-1]
    assert declared > 100
    assert all(f"with the {declared:,} samples it declared" in fact["why"] for fact in refused)


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


@pytest.mark.nightly
def test_lines_of_an_edge_and_of_its_server_count_while_both_run(tmp_path: Path) -> None:
    """A party is added below an edge and one removed; then an edge is added at the server. Nobody is started again."""
    from atoll.runtimes.network.trust.roster import line_of, load_key, new_key

    job = JOB.replace('{ use = "mlp", hidden = [120, 120] }', '"softmax"').replace("rounds = 2", "rounds = 4000")
    levels = Levels(tmp_path, 2)
    north, south = (levels.under[name] for name in ("north", "south"))

    def listed(roster: Path, *lines: str) -> None:
        roster.with_suffix(".new").write_text("".join(f"{line}\n" for line in lines))
        roster.with_suffix(".new").rename(roster)

    def told(folder: Path, what: str, **more: str) -> bool:
        facts = [json.loads(line) for line in (folder / "facts.jsonl").read_text().splitlines() if line.endswith("}")]
        return any(fact["what"] == what and more.items() <= fact.items() for fact in facts)

    def said(name: str) -> str:
        log = north.folder / f"{name}.log"
        return log.read_text() if log.is_file() else ""

    def until(holds: Callable[[], bool]) -> None:
        end = time.monotonic() + 120
        while not holds():
            assert time.monotonic() < end, {name: said(name)[-800:] for name in north.processes}
            time.sleep(0.1)

    of_edges = levels.top.roster.read_text().splitlines()
    of_north = north.roster.read_text().splitlines()
    try:
        listed(levels.top.roster, of_edges[0])
        parent = levels.top.open(job)
        levels.edge(parent, "north", 0)
        levels.below("north", 0)
        levels.top.until(2)
        listed(north.roster, *of_north, line_of(new_key(north.folder, "north-2")))
        levels.party("north", "north-2", 4)
        until(lambda: told(levels.top.folder / "north", "roster", added="north-2"))
        until(lambda: "contribute: " in said("north-2"))
        listed(north.roster, of_north[1], line_of(load_key(north.folder / "north-2.key")))
        north.processes["north-0"].join(60)
        assert north.processes["north-0"].exitcode == 1
        assert "Revoked" in said("north-0")
        listed(levels.top.roster, *of_edges)
        levels.edge(parent, "south", 8)
        levels.below("south", 2)
        until(lambda: told(levels.top.folder / "run", "round", answered=2))
        running = [*levels.edges, *south.processes.values(), *(north.processes[f"north-{k}"] for k in (1, 2))]
        assert all(process.is_alive() for process in running)
        assert said("north-1").count("who sees what") == 2, "it looked at the job again for north-2 only"
    finally:
        levels.end()


@dataclass(frozen=True)
class Telling(atoll.FedAvg):
    """A method that tells the server a figure of each party."""

    @property
    def reports(self) -> Schema:
        return Schema((("value", ()),))


def made(method: Any, stages: Any = None, combine: Any = None, **more: Any) -> Any:
    from atoll.data import build

    channel = atoll.Channel(stages or (atoll.Weigh(),), combine or atoll.Sum())
    return assemble(atoll.Job(method, atoll.All(), channel, rounds=2, **more), build({"use": "digits", "clients": 6}))


@pytest.mark.parametrize(
    ("job", "policy", "said"),
    [
        ({"stages": (atoll.Clip(1.0), atoll.Average(), atoll.Gaussian(1.0, "local"))}, {}, "noise through an edge"),
        ({"stages": (atoll.Clip(1.0, quantile=0.5), atoll.Average())}, {}, "keeps memory at the server"),
        ({"combine": atoll.Buffered(2)}, {}, "an edge waits for all"),
        ({"method": Telling(atoll.models.softmax())}, {}, "Telling reports value of each party, and an edge is many"),
        ({}, {"max_norm": 1.0}, "max_norm: an edge passes on what its parties clip"),
        ({}, {"round_metrics": 10}, "round_metrics: an edge has no test data"),
    ],
)
def test_what_would_mean_something_else_is_refused(job: Any, policy: Any, said: str) -> None:
    with pytest.raises(NotAllowed, match=said):
        check_edge(made(**({"method": atoll.FedAvg(atoll.models.softmax())} | job)), Policy(**policy))


@pytest.mark.parametrize("metric", [*CLASSES, *REAL], ids=lambda metric: metric.name)
def test_an_edge_without_data_declares_every_metric_as_a_party_does(metric: Any) -> None:
    """Sums over own test data have one layout, whoever adds them up."""
    from atoll.data import build
    from atoll.programs.evaluate import LOCAL
    from atoll.runtimes.network.party.assess import blank

    data = build({"use": "diabetes" if metric in REAL else "digits", "clients": 3, "test": 0.2})
    model = atoll.models.linear() if metric in REAL else atoll.models.softmax()
    job = atoll.Job(atoll.FedAvg(model), metrics=(metric,))
    below = blank(summary_of(data).sample, data.classes)
    of_party, of_edge = (assemble(job, held, world=World.real(0)).questions(3)[LOCAL] for held in (data, below))
    assert of_edge.answers == of_party.answers


def test_an_edge_that_is_early_waits_for_its_hours(tmp_path: Path) -> None:
    soon, said, stop = datetime.now() + timedelta(hours=2), list[str](), threading.Event()
    policy = Policy(allow_plain=True, hours=f"{soon:%H:%M}-{soon + timedelta(minutes=1):%H:%M}")
    below = Downstream("127.0.0.1:0", Insecure("north"), dict)
    with ThreadPoolExecutor(1) as threads:  # nobody is there, and nobody is called
        call = ("127.0.0.1:1", Insecure("north"), "north", policy, tmp_path, below)
        stood = threads.submit(edge, *call, say=said.append, stop=stop)
        with pytest.raises(TimeoutError):
            stood.result(0.5)
        assert "waits until then" in said[0]
        stop.set()
        assert stood.result(10) == "stopped by hand"


def _simulated_facts(job: str) -> Any:
    from atoll.data import build
    from atoll.job.file import parse

    said = parse(job, "the test")
    return atoll.simulate(said.job, build(said.data, said.seed), said.seed).facts
