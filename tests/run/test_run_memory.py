"""What parties of a simulation remember: answers that were used, and no more on disk than those who gave them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.core.method import Contribution, Method, Phase, Population, RoundInfo, State
from atoll.core.party import Group
from atoll.core.tree import Schema, Tree
from atoll.core.world import World
from atoll.data.federated import Federated, Silos


@dataclass(frozen=True)
class Counting(Method):
    """Send how many of this party's answers were used before, and remember one more."""

    remembers = True
    group_size = 4
    width: int = 1

    @property
    def phases(self) -> Mapping[str, Phase]:
        return {"train": Phase(Schema((("before", (1,)),)), mean=True)}

    def init(self, world: World, population: Population) -> State:
        return {"before": np.zeros(1)}

    def broadcast(self, state: State) -> Tree:
        return dict(state)

    def client_update(self, broadcast: Tree, group: Group) -> Contribution:
        count = group.memory.get("count", np.zeros(self.width, np.float32))
        after = (count + 1).astype(np.float32)
        return Contribution({"before": count[:, :1].astype(np.float64)}, np.ones(len(group)), {"count": after})

    def server_update(self, state: State, tree: Tree, info: RoundInfo) -> State:
        return {"before": tree["before"]}


def parties(number: int) -> Federated:
    one = Silos(np.zeros((number, 1), np.float32), (np.arange(number) % 2).astype(np.int32), np.arange(number + 1))
    return Federated(one, classes=2)


def remembered(run: atoll.Run, number: int) -> list[float]:
    """Ask everybody of a finished run once more for what it remembers."""
    from atoll.journal.read import read
    from atoll.runtimes.local.memory import PartyMemory

    assert run.folder
    memory, parties = read(run.folder).memory(), PartyMemory(run.folder)
    assert memory
    parties.restore(memory["parties"])
    found = parties.recall(np.arange(number))
    return np.where(found.known, found.leaves["method/count"][:, 0], 0).tolist()


@pytest.mark.parametrize("max_staleness", [0, 1, 40])
def test_a_late_answer_is_remembered_when_it_is_used_and_a_stale_one_never(max_staleness: int, tmp_path: Path) -> None:
    channel = atoll.Channel([atoll.Average()], atoll.Buffered(3, max_staleness=max_staleness))
    job = atoll.Job(Counting(), atoll.All(), channel, rounds=30)
    run = atoll.simulate(job, parties(12), workers=0, out=tmp_path)
    used = np.zeros(12)
    for fact in run.facts:
        if fact["what"] == "round":
            used[fact["parties"]] += 1
    assert remembered(run, 12) == used.tolist()
    assert (sum(fact.get("stale", 0) for fact in run.facts) > 0) == (max_staleness < 40)
    assert used.sum() == 90


WHOLE = """
import json, resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
import atoll
from test_run_memory import Counting, parties
data, out = parties(int(sys.argv[1])), Path(sys.argv[2])
job = atoll.Job(Counting(width=1000), atoll.RoundRobin(1000), atoll.Channel([atoll.Average()]), rounds=10)
logs = []
def log(note):
    if note.what == "round":
        logs.append(sum(path.stat().st_size for path in out.rglob("memory-*.log")))
run = atoll.simulate(job, data, workers=0, out=out, sinks=(log,))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
checkpoints = [path.stat().st_size for path in (run.folder / "checkpoints").iterdir()]
print(json.dumps({"peak": peak, "checkpoint": max(checkpoints), "logs": logs}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is counted in kilobytes")
def test_a_run_of_a_million_parties_of_whom_ten_thousand_take_part_is_flat(tmp_path: Path) -> None:
    def measured(number: int) -> dict[str, Any]:
        command = [sys.executable, "-c", WHOLE, str(number), str(tmp_path / str(number)), str(Path(__file__).parent)]
        found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        return found

    few, many = measured(10_000), measured(1_000_000)
    # The million's data and sizes are 24 bytes each; what parties remember adds nothing to that.
    assert many["peak"] - few["peak"] < 48 * 1024
    assert many["checkpoint"] <= few["checkpoint"] <= 200_000
    rows = 1000 * (1000 * 4 + 8)
    steps = np.diff([0, *many["logs"]])
    assert (steps < 1.01 * rows).all(), "a checkpoint writes more than the rows that changed"
    assert many["logs"][-1] == few["logs"][-1]
