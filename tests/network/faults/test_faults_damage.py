"""A served run whose disk flips bits: it ends with the same bits, or a sentence names the file; nothing in between."""

from __future__ import annotations

import stat
from collections.abc import Callable

import pytest
from cluster import Cluster, job
from trials import ANSWER, damaged

pytest.importorskip("grpc")


def test_flipped_bits_of_checkpoint_journal_store_and_answer(cluster: Callable[..., Cluster]) -> None:
    names = ["the newest checkpoint", "facts.jsonl", "server.sqlite", ANSWER]
    federation, ends = cluster(job(40)), dict[str, str]()
    damaged(federation, 3, names, len(names), ends.__setitem__)
    assert {name: ends[name] for name in names if name != "server.sqlite"} == dict.fromkeys(
        ("the newest checkpoint", "facts.jsonl", ANSWER), "noticed"
    )
    for folder in (federation.run, *federation.folder.glob("party-*")):
        found = [path for path in [folder, *folder.rglob("*")] if path.name != "report.html"]
        assert {stat.S_IMODE(path.stat().st_mode) for path in found} <= {0o600, 0o700}, "they are their owners' alone"
