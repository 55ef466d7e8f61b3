"""What tests of faults share: federations that are gone afterwards, and figures that are shown at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster

FIGURES = pytest.StashKey[list[str]]()


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


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Show a line at the end of the session, whether or not the test passes."""
    lines = request.config.stash.setdefault(FIGURES, [])
    return lambda line: lines.append(f"{request.node.name}: {line}")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    lines = config.stash.get(FIGURES, [])
    if lines:
        terminalreporter.section("figures")
        for line in lines:
            terminalreporter.write_line(line)
