"""The table of faults: nothing is lost, nothing wrong is believed, and it says so only where that was seen."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from trials import EQUAL, SENTENCE, Say, Try, kills

pytest.importorskip("grpc")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="files are watched by inotify, disks are mounted")

spec = importlib.util.spec_from_file_location("faults_table", Path(__file__).with_name("table.py"))
assert spec
assert spec.loader
table = importlib.util.module_from_spec(spec)
spec.loader.exec_module(table)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", table.KINDS)
def test_nothing_is_lost_and_nothing_wrong_is_believed(
    kind: str, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    found, row = table.made(kind, table.KINDS[kind][1], tmp_path, lambda _: None)
    figure(table.shown([row]))
    assert [one for one in found if one.is_wrong] == []


@pytest.mark.nightly
def test_a_few_kills(tmp_path: Path) -> None:
    assert {one.end for one in kills(2, tmp_path, lambda _: None, rounds=30)} == {EQUAL}


@pytest.mark.parametrize(("end", "code"), [(EQUAL, 0), (SENTENCE, 0), ("AssertionError: the model has other bits", 1)])
def test_what_is_neither_equal_nor_said_is_listed_and_the_command_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], end: str, code: int
) -> None:
    def kind(tries: int, folder: Path, say: Say) -> Iterator[Try]:
        say("begun")
        yield from (Try("a fault", end if k == 1 else EQUAL) for k in range(tries))

    monkeypatch.setitem(table.KINDS, "kills", (kind, 3))
    assert table.main(["kills", "--some", "2"]) == code
    lines = capsys.readouterr().out.splitlines()
    counts = {EQUAL: 2, SENTENCE: 0, "else": 0} if end == EQUAL else {EQUAL: 1, SENTENCE: int(not code), "else": code}
    assert lines[2].startswith(f"| kills | 2 | {' | '.join(map(str, counts.values()))} |")
    assert lines[3:] == [f"a fault: {end}"] * code
