"""A job on a Ray cluster gives the bits of the simulator, survives lost actors and nodes, and leaves nothing behind.

Ray works in processes of its own: what it does to an interpreter must not reach other tests. Functions that begin with
`play` run there; the tests look at what they return.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import platform
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import psutil
import pytest

import atoll
import spawn
from atoll.core.effects import Note
from atoll.core.method import Contribution, Evaluation, Method, Phase, Population, RoundInfo, State
from atoll.core.party import Group, Handler, Samples
from atoll.core.tree import Schema, Tree
from atoll.core.world import World
from atoll.data.federated import Federated
from atoll.journal import Journal
from atoll.methods import FedAvg
from atoll.models import mlp
from atoll.runtimes.local.simulator import Simulator
from atoll.runtimes.local.worker import PartyFailed
from atoll.runtimes.ray.actor import ActorPlace, versions
from atoll.runtimes.ray.cluster import NoCluster, connect, knock, private
from atoll.runtimes.ray.pool import RayPool, _difference
from atoll.runtimes.ray.sweep import sweep
from atoll.runtimes.run import Run
from atoll.testing import check_runtime

HERE = Path(__file__).parent
PYTHON = re.escape(platform.python_version())
VERSIONS = (
    rf"the Ray cluster at (ray://)?[\d.:]+ has Ray \d[\d.]+ and Python {PYTHON}, "
    rf"this process has Ray 2\.0\.0 and Python {PYTHON}: install the same on both sides"
)
WIDE = 64 * 512  # numbers of a vector: 128 KiB
WHOLE = "distributed noise, whole protocol"
ray_only = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")


# --- what is played ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Troubled(Method):
    """Go half way to the mean sample, in NumPy alone so that actors start fast; but from round 2 on what party 7 does
    ends badly, once or always; or parties take a while, or the later ones do. Its vector is too large for a call.
    """

    how: str = ""
    marker: str = ""
    group_size = 1  # parties are asked one by one, so that there are chunks to deal out
    phases: ClassVar = {"train": Phase(Schema((("delta", (WIDE,)),)), dtype="float32")}
    evaluation = Evaluation(
        {"n": (), "loss": ()}, lambda sums: {"loss": float(sums["loss"] / sums["n"])}, {"loss": "low"},
        lambda sums: sums["loss"] / sums["n"],
    )  # fmt: skip

    def init(self, world: World, population: Population) -> State:
        return {"params": np.zeros(WIDE, np.float32)}

    def broadcast(self, state: State) -> Tree:
        return {"params": state["params"]}

    def client_update(self, broadcast: Tree, group: Group) -> Contribution:
        if self.how == "steady":
            time.sleep(0.01)
        if self.how == "slow" and group.me[0] >= 6:
            time.sleep(0.2)
        if 7 in group.me and group.t >= 1:
            if self.how == "raise":
                raise ValueError("the sensor of this party is broken")
            if self.how == "exit":
                os._exit(3)
            if self.how == "killed" and not Path(self.marker).exists():
                Path(self.marker).touch()
                os.kill(os.getpid(), signal.SIGKILL)
        rows = [wide(x).mean(0) - broadcast["params"] for x, _ in group]
        return Contribution({"delta": np.stack(rows)}, group.size)

    def server_update(self, state: State, tree: Tree, info: RoundInfo) -> State:
        return {"params": state["params"] + np.float32(0.5) * tree["delta"]}

    def evaluate(self, broadcast: Tree, group: Group) -> Tree:
        loss = [np.square(wide(x) - broadcast["params"]).sum() for x, _ in group]
        return {"n": group.size, "loss": np.array(loss)}


def wide(x: Any) -> Any:
    """Each pixel many times, each time of another size."""
    rows = np.asarray(x, np.float32).reshape(len(x), 64, 1)
    return (rows * np.linspace(0, 1, WIDE // 64, dtype=np.float32)).reshape(len(x), WIDE)


@dataclass
class Calm:
    """A world in which everybody answers, the lower numbers first."""

    def lost(self, who: Any, t: int) -> Any:
        return np.zeros(len(who), bool)

    def latency(self, who: Any, t: int) -> Any:
        return np.asarray(who, float)


def job(**settings: Any) -> atoll.Job:
    """A model so wide that parties are asked one by one."""
    return atoll.Job(**{"method": FedAvg(mlp((150,))), "select": atoll.All(), "rounds": 2, "name": "wide", **settings})


def troubled(how: str, marker: str = "", rounds: int = 3) -> atoll.Job:
    return job(method=Troubled(how, marker), rounds=rounds)


def parties(count: int = 12) -> Federated:
    return atoll.data.build({"use": "digits", "clients": count, "by": "dirichlet", "alpha": 0.5, "test": 0.2}, 0)


def channels() -> dict[str, atoll.Channel]:
    bounded = [atoll.Average(by="expected"), atoll.Clip(1.0)]
    inside = [*bounded, atoll.Ring(), atoll.Gaussian(0.5, where="distributed")]
    return {
        "fedavg": atoll.Channel([atoll.Average()]),
        "median": atoll.Channel([atoll.Average()], atoll.Each(atoll.Median())),
        "central noise": atoll.Channel([*bounded, atoll.Gaussian(0.5)]),
        "distributed noise, secure sum": atoll.Channel(inside, atoll.SecureSum()),
        WHOLE: atoll.Channel(inside, atoll.SecureSum()),
        "buffered, nobody late": atoll.Channel([atoll.Average()], atoll.Buffered(buffer_size=12)),
        "buffered, half late": atoll.Channel([atoll.Average()], atoll.Buffered(buffer_size=6)),
    }


def bits(run: Run) -> str:
    return hashlib.sha256(run.vector.tobytes()).hexdigest()


def refusal(kind: type[Exception], act: Callable[[], object]) -> str:
    try:
        act()
    except kind as error:
        return str(error)
    return "not refused"


def on_both(name: str, data: Federated) -> list[str]:
    one, actors, protocols = job(channel=channels()[name]), 1 + (name == "fedavg"), name == WHOLE
    here = atoll.simulate(one, data, workers=0, protocols=protocols)
    return [bits(here), bits(atoll.on_ray(one, data, workers=actors, protocols=protocols))]


def died(run: Run) -> list[str]:
    return [f["died"] for f in run.facts if "died" in f]


def play_a_machine() -> dict[str, Any]:
    """One cluster on this machine, and all that is done on it."""
    before = signal.getsignal(signal.SIGTERM)
    leave = connect(cpus=2)
    try:
        made: list[Simulator] = []

        def make(handlers: Mapping[str, Handler], samples: Samples) -> Simulator:
            args: Any = {"availability": Calm(), "journal": Journal(), "executor": partial(RayPool, size=2)}
            made.append(Simulator(handlers, {"train": samples}, World(), **args))
            return made[-1]

        check_runtime(make)
        pids = made[-1].processes
        private = {
            "telemetry": [p.environ().get("RAY_USAGE_STATS_ENABLED") for p in family() if "ray::" not in p.name()],
            "ears": sorted({c.laddr.ip.removeprefix("::ffff:") for c in connections() if c.status == "LISTEN"}),
            "folder": [oct(folder.stat().st_mode & 0o777) for folder in folders(family())],
            "others": sorted({c.raddr.ip.removeprefix("::ffff:") for c in connections() if c.raddr}),
        }
        made[-1].close()
        data = parties()
        with tempfile.TemporaryDirectory() as folder:
            disturbed = atoll.on_ray(troubled("killed", f"{folder}/once"), data, workers=1)
        found = {
            "processes": len(set(pids) - {os.getpid()}),
            "bits": {name: on_both(name, data) for name in channels()},
            "disturbed": [bits(atoll.simulate(troubled(""), data, workers=0)), bits(disturbed)],
            "died": died(disturbed),
            "raises": refusal(PartyFailed, lambda: atoll.on_ray(troubled("raise"), data, workers=1)),
            "exits": refusal(PartyFailed, lambda: atoll.on_ray(troubled("exit"), data, workers=1)),
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


def stored(ray: Any) -> int:
    """Bytes that were ever written into the object stores: what is put or returned there, and what came from others."""
    from ray._private.internal_api import node_stats

    places = [(n["NodeManagerAddress"], n["NodeManagerPort"]) for n in ray.nodes() if n["Alive"]]
    return sum(node_stats(*place, include_memory_info=False).store_stats.cumulative_created_bytes for place in places)


def play_nodes() -> dict[str, Any]:
    """A head and two nodes, each with an actor; a node is taken away while it works."""
    os.environ |= private()
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    node, _ = [cluster.add_node(num_cpus=1) for _ in range(2)]
    cluster.wait_for_nodes()
    data, spread, written = parties(25), {}, {}
    taken: list[int] = []

    def take_away(note: Note) -> None:
        all_there = len([p for p in family() if "ray::Actor" in p.name()]) == 3
        if note.what == "round" and all_there and not taken:
            taken.append(note.facts["round"])
            threading.Timer(0.3, cluster.remove_node, (node, False)).start()

    try:
        for actors in (1, 2, 3):
            upto: list[int] = []
            watch = lambda note, upto=upto: upto.append(stored(ray)) if note.what == "round" else None  # noqa: E731
            run = atoll.on_ray(
                troubled("steady", rounds=12), data, workers=actors, address=cluster.address, sinks=(watch,)
            )
            spread[actors], written[actors] = bits(run), [b - a for a, b in itertools.pairwise(upto)]
        run = atoll.on_ray(troubled("slow", rounds=6), parties(), address=cluster.address, sinks=(take_away,))
        ray.__version__ = "2.0.0"
        other = refusal(NoCluster, lambda: connect(cluster.address))
        max_staleness = refusal(NoCluster, connect)
    finally:
        cluster.shutdown()
    calm = atoll.simulate(troubled("", rounds=6), parties(), workers=0)
    return {
        "bits": [bits(calm), bits(run)],
        "spread": [bits(atoll.simulate(troubled("steady", rounds=12), data, workers=0)), *spread.values()],
        "written": written,
        "died": died(run),
        "taken": taken,
        "other": other,
        "late": max_staleness,
    }


def play_from_afar() -> dict[str, Any]:
    """A cluster that is reached through its client port."""
    os.environ |= private()
    import ray
    from ray.cluster_utils import Cluster

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    head = {"num_cpus": 1, "include_dashboard": False, "ray_client_server_port": port}
    cluster, address = Cluster(initialize_head=True, head_node_args=head), f"ray://127.0.0.1:{port}"
    try:
        run = atoll.on_ray(troubled(""), parties(), address=address)
        ray.__version__ = "2.0.0"
        other = refusal(NoCluster, lambda: connect(address))
    finally:
        cluster.shutdown()
    return {"bits": [bits(atoll.simulate(troubled(""), parties(), workers=0)), bits(run)], "other": other}


def play_for_ever() -> dict[str, Any]:
    """Train until somebody ends it."""

    def tell(note: Note) -> None:
        if note.what == "round":
            sys.stdout.write(json.dumps([p.pid for p in family()]) + "\n")
            sys.stdout.flush()

    atoll.on_ray(troubled("", rounds=1_000_000), parties(), workers=1, sinks=(tell,))
    return {}


def family() -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]


def folders(processes: Sequence[psutil.Process]) -> list[Path]:
    """Where a cluster of this machine has its sockets and logs."""
    words = " ".join(word for process in processes for word in process.cmdline())
    return [Path(folder) for folder in sorted(set(re.findall(r"=(/tmp/atoll-ray-\w+)", words)))]


def connections() -> list[Any]:
    return [c for p in (psutil.Process(), *family()) for c in p.net_connections("inet")]


def start(play: Callable[[], dict[str, Any]]) -> subprocess.Popen[str]:
    text = f"import json, test_runtimes_ray as plays\nprint(json.dumps(plays.{play.__name__}()))"
    places = (str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", ""))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    command = [sys.executable, "-c", text]
    return spawn.start(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def told(process: subprocess.Popen[str]) -> dict[str, Any]:
    said, wrong = process.communicate(timeout=600)
    assert process.returncode == 0, wrong
    return {**json.loads(said.splitlines()[-1]), "stderr": wrong}


@contextlib.contextmanager
def playing(*plays: Callable[[], dict[str, Any]]) -> Iterator[list[subprocess.Popen[str]]]:
    with spawn.cleared():
        yield [start(play) for play in plays]


# --- what comes of it -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plays() -> Iterator[list[subprocess.Popen[str]]]:
    with playing(play_a_machine, play_nodes) as processes:  # both wait a lot: they do so together
        yield processes


@pytest.fixture(scope="module")
def machine(plays: list[subprocess.Popen[str]]) -> dict[str, Any]:
    return told(plays[0])


@pytest.fixture(scope="module")
def nodes(plays: list[subprocess.Popen[str]]) -> dict[str, Any]:
    return told(plays[1])


@ray_only
@pytest.mark.slow
def test_actors_obey_the_law_of_runtimes(machine: dict[str, Any]) -> None:
    assert machine["processes"] >= 1  # check_runtime has raised nothing, and other processes answered


@ray_only
@pytest.mark.slow
@pytest.mark.parametrize("channel", channels())
def test_the_bits_are_those_of_the_simulator(machine: dict[str, Any], channel: str) -> None:
    here, there = machine["bits"][channel]
    assert here == there


@ray_only
@pytest.mark.slow
def test_channels_differ_but_those_that_are_the_same_do_not(machine: dict[str, Any]) -> None:
    """A protocol is its simulation, and a buffer that waits for everybody is a sum."""
    here = {name: simulated for name, (simulated, _) in machine["bits"].items()}
    assert here["distributed noise, secure sum"] == here[WHOLE]
    assert here["buffered, nobody late"] == here["fedavg"]
    assert len(set(here.values())) == len(channels()) - 2


@ray_only
@pytest.mark.slow
def test_a_killed_actor_is_replaced_and_noted(machine: dict[str, Any]) -> None:
    assert len(set(machine["disturbed"])) == 1
    assert len(machine["died"]) == 1
    assert re.match(r"actor 0 on 127\.0\.0\.1: ActorDiedError", machine["died"][0])


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
    assert machine["folder"] == ["0o700"]
    assert len(machine["telemetry"]) >= 4  # those of the cluster itself; actors have no such thing
    assert set(machine["telemetry"]) == {"0"}
    assert machine["left"] == []
    assert machine["environment"] == []
    assert machine["sigterm"] is True
    assert machine["stderr"] == ""


@ray_only
@pytest.mark.slow
def test_a_node_taken_away_in_a_round_changes_nothing(nodes: dict[str, Any]) -> None:
    assert nodes["taken"]
    assert nodes["died"]
    assert len(set(nodes["bits"])) == 1


@ray_only
@pytest.mark.slow
def test_one_two_and_three_nodes_give_the_bits_of_the_simulator(nodes: dict[str, Any]) -> None:
    assert len(nodes["spread"]) == 4
    assert len(set(nodes["spread"])) == 1


@ray_only
@pytest.mark.slow
@pytest.mark.parametrize("actors", [1, 2, 3])
def test_between_nodes_totals_travel_and_not_the_vectors_of_parties(nodes: dict[str, Any], actors: int) -> None:
    """The model goes to each node once. An actor takes a total and gives one in each of two laps; it may help once."""
    vectors = [size / (4 * WIDE) for size in nodes["written"][str(actors)][-6:]]  # by then all actors are there
    assert statistics.median(vectors) < actors + 2 * (3 * actors) < 25


@ray_only
@pytest.mark.slow
def test_a_cluster_with_another_ray_is_refused_with_both_versions(nodes: dict[str, Any]) -> None:
    assert re.match(VERSIONS, nodes["other"])


@ray_only
@pytest.mark.nightly
def test_a_cluster_is_reached_through_its_client_port() -> None:
    with playing(play_from_afar) as [process]:
        found = told(process)
    assert len(set(found["bits"])) == 1
    assert re.match(VERSIONS, found["other"])


@ray_only
@pytest.mark.slow
def test_a_private_cluster_is_refused_where_ray_has_read_other_settings(nodes: dict[str, Any]) -> None:
    assert nodes["late"].startswith("Ray was imported before the run")


@ray_only
@pytest.mark.slow
def test_nothing_outlives_an_ended_run() -> None:
    ends = (signal.SIGKILL, signal.SIGTERM)
    with playing(play_for_ever, play_for_ever) as runs:
        for run, end in zip(runs, ends, strict=True):
            assert run.stdout
            # A short-lived child of the cluster may be gone since the line was written.
            others = [psutil.Process(pid) for pid in json.loads(run.stdout.readline()) if psutil.pid_exists(pid)]
            [folder] = folders(others)
            assert folder.exists()
            assert any("ray::Actor" in p.name() for p in others)
            assert any("Agent" in p.name() for p in others)
            run.send_signal(end)
            assert run.wait(timeout=30) != 0
            _, alive = psutil.wait_procs(others, timeout=30)
            assert alive == []
            assert not folder.exists()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system does not say who has which file open")
def test_only_workers_of_that_cluster_are_swept_away_with_its_folder(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "mine too"
    for folder in (mine, other):
        folder.mkdir()
        (folder / "log").touch()
    text = "import sys; f = open(sys.argv[1]); print(flush=True); sys.stdin.read()"
    who = [
        ("ray::Actor", mine, ""), ("python", other, f"--logs={mine}/a"), ("somebody", mine, f"{mine}/a"),
        ("ray::Actor", other, ""),
    ]  # fmt: skip
    with contextlib.ExitStack() as stack:
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        processes = [
            stack.enter_context(
                spawn.start([name, "-c", text, str(folder / "log"), more], executable=sys.executable, **pipes)
            )
            for name, folder, more in who
        ]
        for process in processes:
            process.stdout.readline()
        sweep(str(mine))
        assert [process.wait(timeout=10) for process in processes[:2]] == [-signal.SIGKILL] * 2
        assert [process.poll() for process in processes[2:]] == [None, None]
    assert not mine.exists()
    assert other.exists()


def test_where_nobody_is_there_it_is_said_at_once() -> None:
    with socket.socket() as taken:  # bound, and deaf
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for where, port in ((address, 6379), (f"ray://{address}", 10001), ("ray://127.0.0.1:99999", 10001)):
            with pytest.raises(NoCluster, match=f"no Ray cluster at {where} .*: start one there .* {port} by default"):
                knock(where)


def test_a_node_with_other_libraries_is_named() -> None:
    place = ActorPlace(1, "10.0.0.7", "", {**versions(), "numpy": "1.0"})
    assert re.match(r"node 10\.0\.0\.7 has numpy 1\.0 \(here \d.*install the same", _difference(place))


@pytest.mark.parametrize("workers", [0, -1])
def test_a_cluster_has_an_actor(workers: int) -> None:
    with pytest.raises(ValueError, match=f"workers must be at least 1, got {workers}"):
        atoll.on_ray(job(), parties(), workers=workers)
