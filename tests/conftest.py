"""What tests share: small federations, and the larger data sets where ATOLL_DATA names them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import atoll
from atoll.data.federated import Federated
from spawn import _no_process_outlives_its_test, pytest_configure  # noqa: F401


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    folder = os.environ.get("ATOLL_DATA")
    left_out = {}
    if not (folder and Path(folder).is_dir()):
        left_out["data"] = "ATOLL_DATA does not name a folder with the larger data sets"
    if "nightly" not in config.option.markexpr:
        left_out["nightly"] = "takes minutes: pytest -m nightly runs it"
    for item in items:
        for marker, reason in left_out.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def digits() -> Federated:
    return atoll.data.build({"use": "digits", "clients": 12, "by": "dirichlet", "alpha": 0.5, "test": 0.2}, 0)


@pytest.fixture(scope="session")
def unequal() -> Federated:
    """Seven parties of 1 to 40 samples, two classes, five features."""
    generator = np.random.default_rng(7)
    sizes = [1, 3, 8, 13, 20, 33, 40]
    parts = []
    for k, n in enumerate(sizes):
        x = generator.normal(size=(n, 5)).astype(np.float32) + 0.2 * k
        parts.append((x, (x.sum(1) + generator.normal(size=n) > 0.5).astype(np.int32)))
    x = generator.normal(size=(200, 5)).astype(np.float32)
    return atoll.data.federate(parts, test=(x, (x.sum(1) > 0.5).astype(np.int32)), classes=2)
