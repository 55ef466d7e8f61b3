"""A served run whose disk flips bits: it ends with the same bits, or a sentence names the file; nothing in between."""

from __future__ import annotations

import random
import shutil
import signal
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster import Cluster, job

from atoll.data import build
from atoll.job.file import load
from atoll.journal import read
from atoll.runtimes.run import simulate

pytest.importorskip("grpc")


def flip(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    at = chance.randrange(8 * len(data))
    data[at // 8] ^= 1 << at % 8
    path.write_bytes(data)


def files_of(run: Path) -> list[str]:
    """Every file of a run folder that holds anything; of the two checkpoints, by their age."""
    found = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file() and path.stat().st_size}
    kept = sorted(name for name in found if name.startswith("checkpoints/"))
    return [
        "the newest checkpoint",
        "the one before",
        *sorted(found - set(kept) - {n for n in found if "damaged" in n}),
    ]


def path_of(run: Path, name: str) -> Path:
    ages = {"the newest checkpoint": -1, "the one before": -2}
    return sorted((run / "checkpoints").iterdir())[ages[name]] if name in ages else run / name


def damaged(federation: Cluster, name: str, chance: random.Random) -> str:
    """Flip a bit of a run that was killed, and go on; say what became of it: noticed, passed over or refused."""
    run, copy = federation.run, federation.folder / "copy"
    shutil.copytree(run, copy)
    before = len(federation.said("server"))
    flip(path_of(run, name), chance)
    server = federation.begin()
    said = lambda: federation.said("server")[before:]  # noqa: E731 - what is said from here on
    federation.until(lambda: "serving at" in said() or server.poll() is not None, pause=0.01)
    outcome = "passed over"
    if server.poll() is not None:
        sentence = [line for line in said().splitlines() if line.startswith("atoll: ")]
        assert server.returncode == 2, said()
        assert len(sentence) == 1
        assert "run" in sentence[0]
        shutil.rmtree(run)
        shutil.copytree(copy, run)
        server, outcome = federation.serve(), "refused"
    shutil.rmtree(copy)
    done = read(run).done()
    federation.until(lambda: read(run).done() > done + 1 or federation.finished() or server.poll() is not None)
    server.send_signal(signal.SIGKILL)
    server.wait(10)
    assert "Traceback" not in said(), said()
    return "noticed" if outcome != "refused" and "damaged" in said() else outcome


def survives(federation: Cluster, flips: int, names: list[str], seed: int) -> Counter[tuple[str, str]]:
    """Flip bits of files in turn, each after a kill; then let the run end, with the bits of a simulation."""
    chance, table = random.Random(seed), Counter[tuple[str, str]]()
    federation.serve().kill()  # the parties have to know the address
    federation.processes[-1].wait(10)
    parties = federation.join_all()
    server = federation.serve()
    federation.until(lambda: read(federation.run).done() >= 3)
    server.kill()
    server.wait(10)
    for k in range(flips):
        name = (names or files_of(federation.run))[k % len(names or files_of(federation.run))]
        table[name.partition("/")[0], damaged(federation, name, chance)] += 1
        federation.revive(parties)
    assert not federation.finished(), "the run is too short for so many flips"
    federation.ends(federation.serve())
    assert federation.model() == simulated(federation.folder)
    return table


def simulated(folder: Path) -> bytes:
    said = load(str(folder / "job.toml"))
    run = simulate(said.job, build(said.data, said.seed), said.seed, out=folder / "simulated", workers=0)
    assert run.folder
    return (run.folder / "model.safetensors").read_bytes()


def test_flipped_bits_of_checkpoint_journal_and_store(cluster: Callable[..., Cluster]) -> None:
    names = ["the newest checkpoint", "facts.jsonl", "server.sqlite"]
    federation = cluster(job(40))
    table = survives(federation, 3, names, seed=3)
    for folder in (federation.run, *federation.folder.glob("party-*")):
        found = [path for path in [folder, *folder.rglob("*")] if path.name != "report.html"]
        assert {stat.S_IMODE(path.stat().st_mode) for path in found} <= {0o600, 0o700}, "they are their owners' alone"
    assert table["the newest checkpoint", "noticed"] == table["facts.jsonl", "noticed"] == 1


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(4))
def test_a_hundred_flipped_bits(cluster: Callable[..., Cluster], figure: Callable[[str], None], seed: int) -> None:
    table = survives(cluster(job(500)), 25, [], seed=seed)
    for (name, outcome), times in sorted(table.items()):
        figure(f"{name}: {outcome} {times}")
    assert {outcome for (name, outcome) in table if "checkpoint" in name or name == "facts.jsonl"} == {"noticed"}
