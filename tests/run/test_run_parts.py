"""What the tests of runs broadcast: small jobs, methods that fail or die, a stage with memory; and that they work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import spawn
from atoll.core.method import Contribution, Phase, Population, RoundInfo, State
from atoll.core.party import Group
from atoll.core.tree import Array, Tree
from atoll.core.wire import Codec, Coded, EncodeContext, Wire, as_was
from atoll.core.world import World
from atoll.data import Federated, build
from atoll.job.job import Channel, Job
from atoll.methods import FedAvg
from atoll.methods.trained import Trained
from atoll.models import Model, mlp, softmax
from atoll.select import All
from atoll.stages import Average

HERE = Path(__file__).parent
ATOLL = (sys.executable, "-c", "from atoll.cli import main; main()")

SOFT = """
name = "soft"
rounds = 400
data = { use = "digits", clients = 20, by = "dirichlet", alpha = 0.3, test = 0.2 }
method = { use = "fedadam", model = "softmax", server_lr = 0.01 }
select = { use = "uniform", fraction = 0.5 }
"""


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    def late(*_: Any) -> None:
        raise TimeoutError("a test took more than two minutes: it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@lru_cache
def digits(clients: int = 20) -> Federated:
    return build({"use": "digits", "clients": clients, "by": "dirichlet", "alpha": 0.3, "test": 0.2}, 0)


def small(**settings: Any) -> Job:
    """A job of a tenth of a second."""
    return Job(**{"method": FedAvg(softmax()), "select": All(), "rounds": 6, "name": "small", **settings})


def wide(**settings: Any) -> Job:
    """A job whose parties are answered for one by one, so that the work is dealt out."""
    return small(**{"method": FedAvg(mlp((300,))), **settings})


def rounds_of(facts: list[dict[str, Any]]) -> list[int]:
    return [f["round"] for f in facts if f["what"] == "round"]


def start(cwd: Path, *args: str, **more: Any) -> subprocess.Popen[str]:
    """Start `atoll`; what it says goes to the file `said`."""
    with (cwd / "said").open("a") as said:
        return spawn.start([*ATOLL, *args], cwd=cwd, stdout=said, stderr=said, text=True, **more)


def until(true: Callable[[], Any], seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = true()
        if found:
            return found
        time.sleep(0.01)
    raise TimeoutError("what was waited for did not happen")


def end(process: subprocess.Popen[str], number: int = signal.SIGKILL) -> int:
    process.send_signal(number)
    return process.wait(30)


def workers_of(pid: int) -> list[psutil.Process]:
    children = psutil.Process(pid).children(recursive=True)
    return [c for c in children if not any("resource_tracker" in word for word in c.cmdline())]


def all_gone(processes: list[psutil.Process], seconds: float = 5.0) -> bool:
    def gone(process: psutil.Process) -> bool:
        try:
            return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    try:
        return bool(until(lambda: all(map(gone, processes)), seconds))
    except TimeoutError:
        return False


def script(text: str, cwd: Path) -> dict[str, Any]:
    """Run a script of its own and return the JSON of its last line."""
    path = cwd / "job.py"
    path.write_text(f"import sys\nsys.path[:0] = [{str(HERE)!r}, {str(HERE.parent)!r}]\n{text}")
    done = spawn.run([sys.executable, path], cwd=cwd, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# --- parts ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fails(Trained):
    """FedAvg, but one party cannot: its task raises, or ends the process."""

    model: Model
    party: int = 7
    how: str = "raise"

    @property
    def inner(self) -> FedAvg:
        return FedAvg(self.model)

    @property
    def phases(self) -> Mapping[str, Phase]:
        return self.inner.phases

    def init(self, world: World, population: Population) -> State:
        return self.inner.init(world, population)

    def broadcast(self, state: State) -> Tree:
        return self.inner.broadcast(state)

    def client_update(self, broadcast: Tree, group: Group) -> Contribution:
        if self.party in group.me and group.t >= 1:
            if self.how == "exit":
                os._exit(3)
            raise ValueError("the sensor of this party is broken")
        return self.inner.client_update(broadcast, group)

    def server_update(self, state: State, tree: Tree, info: RoundInfo) -> State:
        return self.inner.server_update(state, tree, info)


@dataclass(frozen=True)
class Feedback:
    """Send a tenth of the coordinates, the largest; remember the rest and add it the next time."""

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
        return replace(wire, l2=None), Codec(self._encode, as_was, remembers=True)

    def _encode(self, x: Array, memory: Mapping[str, Array], about: EncodeContext) -> Coded:
        x = x + memory["rest"] if memory else x
        k = x.shape[1] // 10
        least = np.partition(np.abs(x), -k, axis=1)[:, -k][:, None]
        sent = np.where(np.abs(x) >= least, x, 0).astype(x.dtype)
        return Coded(sent, {"rest": x - sent})


def forgetful() -> Job:
    return small(channel=Channel([Feedback(), Average()]), rounds=8)


def test_the_stage_with_memory_sends_a_tenth_and_keeps_the_rest() -> None:
    x = np.arange(1, 21, dtype=np.float32).reshape(2, 10)
    sent, memory, _ = Feedback()._encode(x, {}, None)  # type: ignore[arg-type]
    assert (np.count_nonzero(sent, axis=1) == 1).all()
    assert np.array_equal(sent + memory["rest"], x)


def test_the_failing_method_is_fedavg_until_it_fails() -> None:
    from atoll.runtimes.run import simulate

    fine = simulate(small(method=Fails(softmax(), party=99), rounds=2), digits())
    assert np.array_equal(fine.vector, simulate(small(rounds=2), digits()).vector)
