"""A served run on a disk that is full, forbids or tears: a sentence, the old checkpoint or the new, the same bits."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest
from cluster import Cluster, job
from trials import LIMITED, QUORUM, SENTENCE, full_party, full_server, may_mount, mount, sentence, small_disk, true

from atoll.core.errors import Unwritable
from atoll.report.page import write
from atoll.runtimes.network.server.monitor import Monitor, last_said

pytest.importorskip("grpc")

ROUNDS = 40
FULL = {"run": (full_server, "size=100k"), "party-1": (full_party, "size=12k")}


@pytest.fixture
def _mounting(tmp_path: Path) -> None:
    if not may_mount(tmp_path / "disk"):
        pytest.skip("mounting a small disk is not permitted here")


@pytest.mark.usefixtures("_mounting")
@pytest.mark.parametrize("where", [pytest.param("run", marks=pytest.mark.nightly), "party-1"])
def test_a_full_disk_ends_in_a_sentence_and_with_space_the_run_goes_on(tmp_path: Path, where: str) -> None:
    federation, (meets, options) = Cluster(tmp_path, job(10) + QUORUM), FULL[where]
    with small_disk(tmp_path / where, options) as grow, closing(federation):
        assert meets(federation, grow) == SENTENCE


@pytest.mark.nightly
@pytest.mark.parametrize("limit", [4_000, 9_000, 40_000, 100_000])
def test_files_that_may_not_grow_end_the_run_in_a_sentence(cluster: Callable[..., Cluster], limit: int) -> None:
    federation = cluster(job(ROUNDS))
    assert full_server(federation, lambda: None, code=LIMITED.format(limit)) == SENTENCE


@pytest.mark.usefixtures("_mounting")
def test_on_a_disk_that_is_full_to_the_last_byte_the_status_says_so(tmp_path: Path) -> None:
    """There is no space for a new file beside the old one, so the old one is written over."""
    folder = tmp_path / "run"
    with small_disk(folder, "size=64k") as grow, Monitor(folder, 3) as monitor:
        assert last_said(folder)["state"] == "waiting"
        with suppress(OSError):
            (folder / "all").write_bytes(bytes(1 << 20))
        monitor._write()
        assert last_said(folder)["state"] == "full"
        assert "No space left on device; free some space" in last_said(folder)["reason"]
        grow()
        monitor._write()
        assert last_said(folder)["state"] == "full"  # it has only seen now that there is space
        monitor._write()
        assert last_said(folder)["state"] == "waiting"


@pytest.mark.usefixtures("_mounting")
def test_a_server_that_cannot_write_down_its_own_process_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with small_disk(folder, "size=4k"):
        (folder / "all").write_bytes(bytes(4096))
        with pytest.raises(Unwritable, match=r"cannot write to .*run: No space left on device; free some space, or"):
            Monitor(folder, 3).__enter__()


@pytest.mark.usefixtures("_mounting")
def test_a_report_that_does_not_fit_is_a_sentence(tmp_path: Path) -> None:
    with small_disk(tmp_path / "run", "size=4k"), pytest.raises(Unwritable, match="atoll report RUN writes it again"):
        write(tmp_path / "run" / "report.html", {}, [])


@pytest.mark.usefixtures("_mounting")
def test_a_disk_that_may_only_be_read_is_named(tmp_path: Path) -> None:
    federation = Cluster(tmp_path, job(ROUNDS))
    with small_disk(federation.run, "size=1m"), closing(federation):
        assert mount("-o", "remount,ro", str(federation.run))
        server = federation.begin()
        server.wait(60)
        assert "Read-only" in sentence(federation, "server", server)


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
    server = federation.serve()
    federation.join_all()
    federation.ends(server)
    true(federation)
