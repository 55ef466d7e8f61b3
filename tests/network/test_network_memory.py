"""What a party remembers counts if its answer was used, and only then, whenever either side is killed."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("grpc")

from atoll.core.party import Remembered, ragged
from atoll.core.tree import Array
from atoll.core.wire import Mismatch
from atoll.journal import Damaged
from atoll.runtimes.local.memory import PartyMemory
from atoll.runtimes.network.party.memory import NEVER, MemoryTooLarge, OwnMemory, WentBack

MB = 2**20


def leaves(value: float) -> dict[str, Array]:
    """What a method and a stage would remember."""
    return {"method/x": np.full((1, 3), value), "stage/train/0.rest": np.full((1, 2, 2), value, np.float32)}


def value_of(found: Remembered | None) -> float | None:
    if found is None:
        return None
    assert found.known.tolist() == [True]
    value = float(found.leaves["method/x"][0, 0])
    assert same(found.leaves, leaves(value))
    return value


def same(a: Mapping[str, Array], b: Mapping[str, Array]) -> bool:
    equal = all(np.array_equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a.keys() & b.keys())
    return a.keys() == b.keys() and equal


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def test_memory_is_provisional_until_its_answer_was_used(tmp_path: Path) -> None:
    memory = OwnMemory(tmp_path / "job", MB)
    assert memory.recall(NEVER) is None
    memory.remember(0, leaves(1.0))
    assert memory.recall(NEVER) is None
    assert files(tmp_path / "job") == {"provisional-0.safetensors"}
    memory.settle(0)
    assert value_of(memory.recall(0)) == 1.0
    assert files(tmp_path / "job") == {"committed-0.safetensors"}


def test_memory_of_an_answer_that_was_not_used_is_forgotten(tmp_path: Path) -> None:
    memory = OwnMemory(tmp_path / "job", MB)
    memory.remember(0, leaves(1.0))
    memory.settle(0)
    memory.remember(1, leaves(2.0))
    memory.settle(0)
    assert value_of(memory.recall(0)) == 1.0
    assert files(tmp_path / "job") == {"committed-0.safetensors"}
    memory.settle(1)  # too late: it is gone
    assert value_of(memory.recall(1)) == 1.0


def test_looking_commits_nothing(tmp_path: Path) -> None:
    """An evaluation sees what the ask before it left, and a server that fails after it may still take the ask back."""
    memory = OwnMemory(tmp_path / "job", MB)
    memory.remember(0, leaves(1.0))
    memory.settle(0)
    memory.remember(1, leaves(2.0))
    assert value_of(memory.recall(1)) == 2.0
    assert value_of(memory.recall(0)) == 1.0
    memory.settle(0)
    assert value_of(memory.recall(0)) == 1.0


def test_an_ask_that_comes_again_takes_the_place_of_the_first(tmp_path: Path) -> None:
    memory = OwnMemory(tmp_path / "job", MB)
    for value in (1.0, 2.0):
        memory.remember(4, leaves(value))
    assert files(tmp_path / "job") == {"provisional-4.safetensors"}
    memory.settle(4)
    assert value_of(memory.recall(4)) == 2.0


@pytest.mark.parametrize("used", [True, False])
def test_a_process_that_was_killed_leaves_both_to_the_next(tmp_path: Path, used: bool) -> None:
    code = f"""
import os, signal
from pathlib import Path
import numpy as np
from atoll.runtimes.network.party.memory import OwnMemory

def leaves(value):
    return {{"method/x": np.full((1, 3), value), "stage/train/0.rest": np.full((1, 2, 2), value, np.float32)}}

memory = OwnMemory(Path({str(tmp_path / "job")!r}), 2**20)
memory.remember(3, leaves(1.0))
memory.settle(3)
memory.remember(5, leaves(2.0))
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], env=os.environ, check=False)
    assert done.returncode == -signal.SIGKILL
    again = OwnMemory(tmp_path / "job", MB)
    assert value_of(again.recall(3)) == 1.0
    assert value_of(again.recall(5)) == 2.0
    assert files(tmp_path / "job") == {"committed-3.safetensors", "provisional-5.safetensors"}
    again.settle(5 if used else 3)
    assert value_of(again.recall(5)) == (2.0 if used else 1.0)
    kept = {3, 5} if used else {3}  # a server whose newest checkpoint is damaged goes back by one
    assert files(tmp_path / "job") == {f"committed-{t}.safetensors" for t in kept}


STEPS = st.lists(st.tuples(st.sampled_from(["ask", "ask again", "kill"]), st.booleans()), max_size=12)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_a_party_remembers_what_its_last_used_answer_left(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, bool]]
) -> None:
    """Whatever is asked again, not used, or killed: as if the asks that were not used had never been."""
    folder = tmp_path_factory.mktemp("memory") / "job"
    memory, t, used = OwnMemory(folder, MB), 0, NEVER
    right: dict[int, float | None] = {NEVER: None}
    for value, (step, counts) in enumerate(steps):
        if step == "kill":
            memory = OwnMemory(folder, MB)
            continue
        memory.settle(used)
        assert value_of(memory.recall(used)) == right[used]
        memory.remember(t, leaves(float(value)))
        if step == "ask again":  # the server failed before it had the answer
            continue
        if counts:
            used, right[t] = t, float(value)
        t += 1
        assert len(files(folder)) <= 3, "two that were committed, and one that is provisional"
    assert value_of(OwnMemory(folder, MB).recall(used)) == right[used]


@pytest.mark.parametrize(
    "row",
    [np.arange(6.0).reshape(2, 3), np.zeros((0, 4), np.int16), np.array(7, np.uint64), np.array([True, False])],
    ids=["matrix", "empty", "number", "booleans"],
)
def test_a_row_of_a_shape_of_its_own_comes_back_as_it_was(tmp_path: Path, row: Array) -> None:
    """As an arena of a simulation gives it to a group of one: with a leading axis."""
    leaf = ragged([row])
    memory, store = OwnMemory(tmp_path / "job", MB), PartyMemory()
    memory.remember(0, {"method/x": leaf, "method/none": ragged([None])})  # type: ignore[list-item]
    store.remember(np.array([0, 1]), {"method/x": ragged([row, np.ones((9, 9))])})
    memory.settle(0)
    for again in (memory, OwnMemory(tmp_path / "job", MB)):
        found = again.recall(0)
        assert found is not None
        assert same(found.leaves, store.recall(np.array([0])).leaves)
        assert same(found.leaves, {"method/x": row[None]})


def test_bytes_of_a_row_of_its_own_shape_count(tmp_path: Path) -> None:
    memory = OwnMemory(tmp_path / "job", 79)
    with pytest.raises(MemoryTooLarge, match="remember 80 bytes"):
        memory.remember(0, {"method/x": ragged([np.zeros(10)])})


def test_what_is_no_number_is_refused(tmp_path: Path) -> None:
    memory = OwnMemory(tmp_path / "job", MB)
    with pytest.raises(Mismatch, match=r"^memory 'method/x' holds <U2: remember booleans or numbers of up to 64 bits$"):
        memory.remember(0, {"method/x": ragged([np.array(["no"])])})
    assert files(tmp_path / "job") == set()


def test_a_job_that_is_begun_anew_finds_nothing(tmp_path: Path) -> None:
    """The same job has the same folder, and what the run before it left is none of its business."""
    memory = OwnMemory(tmp_path / "job", MB)
    memory.remember(0, leaves(1.0))
    memory.settle(0)
    assert memory.recall(NEVER) is None
    assert value_of(memory.recall(0)) == 1.0, "to look forgets nothing"
    memory.settle(NEVER)
    assert files(tmp_path / "job") == set()
    assert OwnMemory(tmp_path / "job", MB).recall(0) is None


def test_a_server_that_goes_back_too_far_is_told_so(tmp_path: Path) -> None:
    memory = OwnMemory(tmp_path / "job", MB)
    for t in (1, 2, 4):
        memory.remember(t, leaves(float(t)))
        memory.settle(t)
    said = "the server goes back to ask 2, and this party remembers ask 3 on: serve the run from its newest checkpoint"
    with pytest.raises(WentBack, match=said):
        memory.recall(1)
    with pytest.raises(WentBack, match=said):
        memory.settle(1)
    assert value_of(memory.recall(4)) == 4.0
    memory.settle(2)  # its newest checkpoint is damaged: it goes on from the one before
    assert value_of(OwnMemory(tmp_path / "job", MB).recall(2)) == 2.0
    assert files(tmp_path / "job") == {"committed-2.safetensors"}


@pytest.mark.parametrize("kind", ["committed", "provisional"])
def test_damaged_memory_is_never_believed(tmp_path: Path, kind: str) -> None:
    memory = OwnMemory(tmp_path / "job", MB)
    memory.remember(0, leaves(1.0))
    memory.settle(0)
    memory.remember(1, leaves(2.0))
    (path,) = (tmp_path / "job").glob(f"{kind}-*")
    wrong = bytearray(path.read_bytes())
    wrong[-3] ^= 1
    path.write_bytes(wrong)
    again = OwnMemory(tmp_path / "job", MB)
    with pytest.raises(Damaged, match=rf"{path.name} is damaged.*put this party's folder back from a copy"):
        again.recall(0 if kind == "committed" else 1)
    assert value_of(again.recall(1 if kind == "committed" else 0)) == (2.0 if kind == "committed" else 1.0)


def test_more_than_the_policy_allows_is_refused_and_what_was_there_stays(tmp_path: Path) -> None:
    memory = OwnMemory(tmp_path / "job", 40)
    memory.remember(0, leaves(1.0))  # 24 and 16 bytes
    memory.settle(0)
    with pytest.raises(MemoryTooLarge) as caught:
        memory.remember(1, {**leaves(2.0), "method/more": np.zeros((1, 1000), np.uint8)})
    said = "the method wants to remember 1,040 bytes at this party, and max_memory = 40: raise it"
    assert str(caught.value) == said
    assert caught.value.code == "memory_too_large"
    assert value_of(memory.recall(0)) == 1.0
    assert files(tmp_path / "job") == {"committed-0.safetensors"}


def test_only_the_party_itself_reads_its_memory(tmp_path: Path) -> None:
    OwnMemory(tmp_path / "job", MB).remember(0, leaves(1.0))
    assert stat.S_IMODE((tmp_path / "job").stat().st_mode) == 0o700
