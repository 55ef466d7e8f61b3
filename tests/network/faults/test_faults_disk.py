"""A served run on a disk that is full, forbids or tears: a sentence, the old checkpoint or the new, the same bits."""

from __future__ import annotations

import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster import ATOLL, Cluster, job, undisturbed

from atoll.journal import read

pytest.importorskip("grpc")

LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0})); " + ATOLL
ROUNDS = 40


def mount(*options: str) -> None:
    if subprocess.run(["mount", *options], capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk is not permitted here")


def whole(federation: Cluster) -> int:
    """How many checkpoints there are; each of them can be read."""
    from safetensors.numpy import load_file

    paths = sorted((federation.run / "checkpoints").glob("*.safetensors"))
    for path in paths:
        assert int(load_file(path)["t"]) == int(path.stem)
    return len(paths)


def ends_in_a_sentence(federation: Cluster, server: subprocess.Popen[str], *words: str) -> None:
    code = server.wait(300)
    said = [line for line in federation.said("server").splitlines() if line.startswith("atoll: ")]
    assert code == 2, federation.said("server")
    assert "Traceback" not in federation.said("server")
    assert all(word in said[-1] for word in ("run", *words)), said


def goes_on(federation: Cluster) -> None:
    server = federation.serve()
    federation.join_all()
    federation.ends(server)
    assert federation.model() == undisturbed(job(ROUNDS))
    assert sorted(fact["round"] for fact in read(federation.run).facts if fact["what"] == "round") == [
        *range(1, ROUNDS + 1)
    ]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[Path, str], None]]:
    """Put a small disk where a folder is; asked for before a cluster, it goes after the processes that use it."""
    mounted = list[Path]()

    def put(where: Path, size: str) -> None:
        where.mkdir(parents=True)
        mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(where))
        mounted.append(where)

    yield put
    for where in mounted:
        subprocess.run(["umount", where], check=True)


@pytest.mark.nightly
@pytest.mark.parametrize("size", ["8k", "100k", "300k", "700k", "1500k"])
def test_a_full_disk_ends_the_run_in_a_sentence_and_with_space_it_goes_on(
    disk: Callable[[Path, str], None], cluster: Callable[..., Cluster], size: str
) -> None:
    federation = cluster(job(ROUNDS))
    disk(federation.run, size)
    server = federation.begin("--address", "127.0.0.1:0")
    federation.until(lambda: "serving at" in federation.said("server") or server.poll() is not None)
    if server.poll() is None:
        federation.address = federation.said("server").split("serving at ")[1].split(";")[0]
        federation.join_all()
    ends_in_a_sentence(federation, server, "free some space")
    whole(federation)
    subprocess.run(["mount", "-o", "remount,size=64m", federation.run], check=True)
    federation.close()
    goes_on(federation)


@pytest.mark.nightly
@pytest.mark.parametrize("limit", [4_000, 9_000, 40_000, 100_000])
def test_files_that_may_not_grow_end_the_run_in_a_sentence(cluster: Callable[..., Cluster], limit: int) -> None:
    federation = cluster(job(ROUNDS))
    server = federation.begin(code=LIMITED.format(limit))
    federation.until(lambda: "serving at" in federation.said("server") or server.poll() is not None)
    if server.poll() is None:
        federation.address = federation.said("server").split("serving at ")[1].split(";")[0]
        federation.join_all()
    ends_in_a_sentence(federation, server)
    whole(federation)
    federation.close()
    goes_on(federation)


def test_a_disk_that_may_only_be_read_is_named(
    disk: Callable[[Path, str], None], cluster: Callable[..., Cluster]
) -> None:
    federation = cluster(job(ROUNDS))
    disk(federation.run, "1m")
    mount("-o", "remount,ro", str(federation.run))
    ends_in_a_sentence(federation, federation.begin(), "Read-only")


def cut(path: Path, chance: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: chance.randrange(len(data))])


def garble(path: Path, chance: random.Random) -> None:
    """Other bytes where the header is."""
    data = bytearray(path.read_bytes())
    for at in range(min(64, len(data))):
        data[at] = chance.randrange(256)
    path.write_bytes(data)


def newest(federation: Cluster) -> Path:
    return max((federation.run / "checkpoints").glob("*.safetensors"))


TORN: dict[str, Callable[[Cluster, random.Random], None]] = {
    "the newest checkpoint is cut": lambda f, chance: cut(newest(f), chance),
    "the newest checkpoint is empty": lambda f, chance: newest(f).write_bytes(b""),
    "the newest checkpoint is garbled": lambda f, chance: garble(newest(f), chance),
    "a part of a checkpoint lies about": lambda f, chance: (f.run / "checkpoints" / "00000099.part").write_bytes(
        b"\0" * 99
    ),
    "a fact is torn": lambda f, chance: cut_line(f.run / "facts.jsonl"),
    "an answer nobody knows lies about": lambda f, chance: (f.run / "answers" / "1-0-x").write_bytes(b"\0" * 99),
}


def cut_line(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.nightly
@pytest.mark.parametrize("tear", TORN)
def test_what_a_power_cut_tears_is_put_right(cluster: Callable[..., Cluster], tear: str) -> None:
    federation = cluster(job(ROUNDS))
    server = federation.serve()
    federation.join_all()
    federation.until(lambda: federation.rounds() >= 10)
    server.send_signal(signal.SIGKILL)
    server.wait(10)
    TORN[tear](federation, random.Random(1))
    federation.close()
    goes_on(federation)
