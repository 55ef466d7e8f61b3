"""A job on a Ray cluster gives the bits of the simulator, survives lost actors and nodes, and leaves nothing behind.

Ray works in processes of its own: what it does to an interpreter must not reach other tests. Functions that begin with
`play` run there; the tests look at what they return.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import atoll
from atoll.core.effects import Note
from atoll.core.method import Contribution, State
from atoll.core.party import Group, Handler, Samples
from atoll.core.tree import Schema, Tree
from atoll.data.federated import Federated
from atoll.journal import Journal
from atoll.methods import FedAvg
from atoll.models import Model, mlp
from atoll.run import Run
from atoll.runtimes.ray import NoCluster, RayPool, _difference, _knock, _Place, _private, _versions, connect
from atoll.runtimes.simulate import Simulator
from atoll.runtimes.workers import PartyFailed
from atoll.testing import check_runtime

HERE = Path(__file__).parent
ray_only = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")


# --- what is played ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Troubled:
    """FedAvg, but what party 7 does from round 2 on ends badly: once, always, or slowly for everybody."""

    model: Model
    how: str = ""
    marker: str = ""
    mean = True

    @property
    def inner(self) -> FedAvg:
        return FedAvg(self.model)

    @property
    def schema(self) -> Schema:
        return self.inner.schema

    @property
    def width(self) -> int:
        return self.inner.width

    def init(self, seed: int) -> State:
        return self.inner.init(seed)

    def share(self, state: State) -> Tree:
        return self.inner.share(state)

    def task(self, share: Tree, group: Group) -> Contribution:
        if self.how == "slow":
            time.sleep(0.1)
        if 7 in group.me and group.t >= 1:
            if self.how == "raise":
                raise ValueError("the sensor of this party is broken")
            if self.how == "exit":
                os._exit(3)
            if self.how == "killed" and not Path(self.marker).exists():
                Path(self.marker).touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return self.inner.task(share, group)

    def merge(self, state: State, tree: Tree) -> State:
        return self.inner.merge(state, tree)

    def evaluate(self, share: Tree, group: Group) -> Tree:
        return self.inner.evaluate(share, group)


@dataclass
class Calm:
    """A world in which everybody answers, the lower numbers first."""

    def lost(self, who: Any, t: int) -> Any:
        return np.zeros(len(who), bool)

    def latency(self, who: Any, t: int) -> Any:
        return np.asarray(who, float)


def job(**settings: Any) -> atoll.Job:
    """Parties are answered for one by one, so that there are chunks to deal out."""
    return atoll.Job(**{"method": FedAvg(mlp((150,))), "select": atoll.All(), "rounds": 2, "name": "wide", **settings})


def troubled(how: str, marker: str = "", rounds: int = 3) -> atoll.Job:
    return job(method=Troubled(mlp((150,)), how, marker), rounds=rounds)


def parties() -> Federated:
    return atoll.data.build({"use": "digits", "clients": 12, "by": "dirichlet", "alpha": 0.5, "test": 0.2}, 0)


def bits(run: Run) -> str:
    return hashlib.sha256(run.vector.tobytes()).hexdigest()


def refusal(kind: type[Exception], act: Callable[[], object]) -> str:
    try:
        act()
    except kind as error:
        return str(error)
    return "not refused"


def died(run: Run) -> list[str]:
    return [f["died"] for f in run.facts if "died" in f]


def play_a_machine() -> dict[str, Any]:
    """One cluster on this machine, and all that is done on it."""
    before = signal.getsignal(signal.SIGTERM)
    leave = connect(cpus=2)
    try:
        made: list[Simulator] = []

        def make(handlers: Mapping[str, Handler], samples: Samples) -> Simulator:
            crew = partial(RayPool, size=2)
            made.append(Simulator(handlers, {"train": samples}, 0, world=Calm(), journal=Journal(), crew=crew))
            return made[-1]

        check_runtime(make)
        pids = made[-1].processes
        private = {
            "telemetry": [p.environ().get("RAY_USAGE_STATS_ENABLED") for p in family() if "ray::" not in p.name()],
            "ears": sorted({c.laddr.ip.removeprefix("::ffff:") for c in connections() if c.status == "LISTEN"}),
            "others": sorted({c.raddr.ip.removeprefix("::ffff:") for c in connections() if c.raddr}),
        }
        made[-1].close()
        data, middle = parties(), job(channel=atoll.Channel([atoll.Average()], atoll.Each(atoll.Median())))
        with tempfile.TemporaryDirectory() as folder:
            disturbed = atoll.on_ray(troubled("killed", f"{folder}/once"), data, workers=2)
        found = {
            "processes": len(set(pids) - {os.getpid()}),
            "fedavg": [bits(atoll.simulate(job(), data, workers=0)), bits(atoll.on_ray(job(), data))],
            "median": [bits(atoll.simulate(middle, data, workers=0)), bits(atoll.on_ray(middle, data, workers=1))],
            "disturbed": [bits(atoll.simulate(troubled(""), data, workers=0)), bits(disturbed)],
            "died": died(disturbed),
            "raises": refusal(PartyFailed, lambda: atoll.on_ray(troubled("raise"), data, workers=2)),
            "exits": refusal(PartyFailed, lambda: atoll.on_ray(troubled("exit"), data, workers=2)),
            "joined": refusal(NoCluster, lambda: atoll.on_ray(job(), data, address="ray://elsewhere:10001")),
            "lambda": refusal(NoCluster, lambda: RayPool(threading.Lock(), 1)),  # type: ignore[arg-type]
        }
    finally:
        leave()
    return {
        **found,
        **private,
        "left": [p.cmdline() for p in family()],
        "environment": [name for name in os.environ if "RAY_AUTH" in name],
        "sigterm": signal.getsignal(signal.SIGTERM) == before,
    }


def play_two_nodes() -> dict[str, Any]:
    """A head and a node, each with an actor; the node is taken away while it works."""
    os.environ |= _private()
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    node = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    taken: list[int] = []

    def take_away(note: Note) -> None:
        both = len([p for p in family() if "ray::Hand" in p.name()]) == 2
        if note.what == "round" and both and not taken:
            taken.append(note.facts["round"])
            threading.Timer(0.3, cluster.remove_node, (node, False)).start()

    try:
        run = atoll.on_ray(troubled("slow", rounds=6), parties(), address=cluster.address, sinks=(take_away,))
    finally:
        cluster.shutdown()
    calm = atoll.simulate(troubled("", rounds=6), parties(), workers=0)
    return {"bits": [bits(calm), bits(run)], "died": died(run), "taken": taken}


def play_for_ever() -> dict[str, Any]:
    """Train until somebody ends it."""

    def tell(note: Note) -> None:
        if note.what == "round":
            sys.stdout.write(json.dumps([p.pid for p in family()]) + "\n")
            sys.stdout.flush()

    atoll.on_ray(troubled("", rounds=1_000_000), parties(), workers=2, sinks=(tell,))
    return {}


def family() -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]


def connections() -> list[Any]:
    return [c for p in (psutil.Process(), *family()) for c in p.net_connections("inet")]


def start(play: Callable[[], dict[str, Any]]) -> subprocess.Popen[str]:
    text = f"import json, test_runtimes_ray as plays\nprint(json.dumps(plays.{play.__name__}()))"
    environment = {**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-c", text]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def played(play: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    with start(play) as process:
        try:
            said, wrong = process.communicate(timeout=240)
        except BaseException:
            process.kill()
            raise
    assert process.returncode == 0, wrong
    return {**json.loads(said.splitlines()[-1]), "stderr": wrong}


# --- what comes of it -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def machine() -> dict[str, Any]:
    return played(play_a_machine)


@ray_only
@pytest.mark.slow
def test_actors_obey_the_law_of_runtimes(machine: dict[str, Any]) -> None:
    assert machine["processes"] >= 1  # check_runtime has raised nothing, and other processes answered


@ray_only
@pytest.mark.slow
def test_the_bits_are_those_of_the_simulator(machine: dict[str, Any]) -> None:
    assert len(set(machine["fedavg"])) == 1
    assert len(set(machine["median"])) == 1
    assert machine["fedavg"][0] != machine["median"][0]


@ray_only
@pytest.mark.slow
def test_a_killed_actor_is_replaced_and_noted(machine: dict[str, Any]) -> None:
    assert len(set(machine["disturbed"])) == 1
    assert len(machine["died"]) == 1
    assert re.match(r"actor [01] on 127\.0\.0\.1: ActorDiedError", machine["died"][0])


@ray_only
@pytest.mark.slow
def test_what_a_party_does_wrong_is_named(machine: dict[str, Any]) -> None:
    assert re.search(r"round 2, party 7\b.*ValueError: the sensor of this party is broken", machine["raises"])
    assert re.search(r"3 actors died over the same parties \(7;.*--loop", machine["exits"])


@ray_only
@pytest.mark.slow
def test_what_cannot_be_is_refused_in_a_sentence(machine: dict[str, Any]) -> None:
    assert "has joined a Ray cluster already" in machine["joined"]
    assert "cannot travel to Ray's actors (TypeError: " in machine["lambda"]


@ray_only
@pytest.mark.slow
def test_a_cluster_of_this_machine_is_private_and_leaves_nothing(machine: dict[str, Any]) -> None:
    assert machine["ears"] == ["127.0.0.1"]
    assert machine["others"] == ["127.0.0.1"]
    assert len(machine["telemetry"]) >= 4  # those of the cluster itself; actors have no such thing
    assert set(machine["telemetry"]) == {"0"}
    assert machine["left"] == []
    assert machine["environment"] == []
    assert machine["sigterm"] is True
    assert machine["stderr"] == ""


@ray_only
@pytest.mark.slow
def test_a_node_taken_away_in_a_round_changes_nothing() -> None:
    found = played(play_two_nodes)
    assert found["taken"]
    assert found["died"]
    assert len(set(found["bits"])) == 1


@ray_only
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_an_ended_run(number: signal.Signals) -> None:
    with start(play_for_ever) as process:
        assert process.stdout
        try:
            others = [psutil.Process(pid) for pid in json.loads(process.stdout.readline())]
            names = {other: other.name() for other in others}
            folder = re.search(r"/tmp/atoll-ray-\w+", " ".join(word for other in others for word in other.cmdline()))
            process.send_signal(number)
            process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode != 0
    assert any("ray::Hand" in name for name in names.values())
    _, alive = psutil.wait_procs(others, timeout=10)
    # Without a farewell Ray's two agents look for their server for a minute; they do no work.
    agents = {p for p in alive if number is signal.SIGKILL and "Agent" in names[p]}
    assert set(alive) == agents
    for agent in agents:
        agent.kill()
    assert folder
    assert number is signal.SIGKILL or not Path(folder[0]).exists()
    shutil.rmtree(folder[0], ignore_errors=True)


def test_where_nobody_is_there_it_is_said_at_once() -> None:
    with socket.socket() as taken:  # bound, and deaf
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for where in (address, f"ray://{address}", "ray://127.0.0.1:99999"):
            with pytest.raises(NoCluster, match=f"no Ray cluster at {where} "):
                _knock(where)


def test_a_node_with_other_libraries_is_named() -> None:
    place = _Place(1, "10.0.0.7", {**_versions(), "numpy": "1.0"})
    assert re.match(r"node 10\.0\.0\.7 has numpy 1\.0 \(here \d.*install the same", _difference(place))


@pytest.mark.parametrize("workers", [0, -1])
def test_a_cluster_has_an_actor(workers: int) -> None:
    with pytest.raises(ValueError, match=f"workers={workers}: a number of actors is 1 or more"):
        atoll.on_ray(job(), parties(), workers=workers)
