"""What tests of faults share: federations that are gone afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Make federations in folders of their own."""
    made = list[Cluster]()

    def make(text: str, parties: int = 3) -> Cluster:
        made.append(Cluster(tmp_path / f"federation-{len(made)}", text, parties))
        return made[-1]

    yield make
    for each in made:
        each.close()
