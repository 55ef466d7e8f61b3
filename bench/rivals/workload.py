"""The workloads, made from a seed with NumPy alone: the same numbers in every rival's environment.

    work = load("2nn")
    x, y = work.data[7]              # the samples of client 7
    for client in work.select(3):    # who takes part in round 3
        ...

Where `ATOLL_DATA` names a folder with MNIST, the images are the real ones, scaled to 0..1 and dealt IID to 100 clients
of 600; otherwise ten random prototypes with noise stand in, so that accuracy still means something.
"""

import gzip
import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

Samples = tuple[np.ndarray, np.ndarray]
SEED = 20170220


@dataclass(frozen=True)
class Workload:
    """One federated task: every client's samples, the held-out ones, and how a round trains."""

    name: str
    data: list[Samples]
    test: Samples | None
    cohort: int
    lr: float
    batch: int = 10
    epochs: int = 1
    classes: int = 10

    @property
    def clients(self) -> int:
        return len(self.data)

    def select(self, round: int) -> list[int]:  # noqa: A002
        """The clients of a round, uniformly without replacement; the same for everyone who asks."""
        draw = np.random.default_rng([SEED, 1, round])
        return sorted(draw.choice(self.clients, self.cohort, replace=False).tolist())


def load(name: str) -> Workload:
    """A workload by its name: 2nn, cnn, lstm, softmax or tiny."""
    return WORKLOADS[name]()


def two_nn() -> Workload:
    """784-200-200-10 with ReLU: the 2NN of McMahan et al. 2017."""
    data, test = _digits()
    return Workload("2nn", data, test, cohort=10, lr=0.1)


def cnn() -> Workload:
    """The CNN of McMahan et al. 2017: two 5x5 convolutions (32, 64), 512 dense, 1,663,370 parameters."""
    data, test = _digits()
    return Workload("cnn", data, test, cohort=10, lr=0.05)


def softmax() -> Workload:
    """784-10 without a hidden layer, every client in every round, 60 samples each."""
    data, test = _digits()
    return Workload("softmax", [(x[:60], y[:60]) for x, y in data], test, cohort=100, lr=0.1)


def lstm() -> Workload:
    """Next character at each of 80 positions: embedding 90-8, two LSTM layers of 256, dense 90."""
    ids = np.random.default_rng([SEED, 2]).integers(0, 90, (100, 60, 81))
    data = [(rows[:, :-1], rows[:, 1:]) for rows in ids]
    return Workload("lstm", data, None, cohort=10, lr=0.5, classes=90)


def tiny() -> Workload:
    """60 features to 10 classes, 1,000 clients a round with 10 to 30 samples each: cross-device."""
    draw = np.random.default_rng([SEED, 3])
    offsets = np.concatenate([[0], np.cumsum(draw.integers(10, 31, 1000))])
    x, y = _prototypes(draw, int(offsets[-1]) + 2000, draw.normal(size=(10, 60)) / 2, noise=1)
    data = [(x[i:j], y[i:j]) for i, j in pairwise(offsets)]
    return Workload("tiny", data, (x[offsets[-1] :], y[offsets[-1] :]), cohort=1000, lr=0.1)


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "2nn": two_nn,
    "cnn": cnn,
    "lstm": lstm,
    "softmax": softmax,
    "tiny": tiny,
}


def _digits() -> tuple[list[Samples], Samples]:
    draw = np.random.default_rng([SEED, 0])
    folder = Path(os.environ["ATOLL_DATA"]) / "mnist" if os.environ.get("ATOLL_DATA") else None
    if folder and folder.is_dir():
        x, y = _idx(folder, "train")
        test = _idx(folder, "t10k")
    else:
        x, y = _prototypes(draw, 62_000, draw.uniform(size=(10, 784)) / 2, noise=0.2)
        x, y, test = x[:60_000], y[:60_000], (x[60_000:], y[60_000:])
    order = draw.permutation(len(x)).reshape(100, 600)
    return [(x[rows], y[rows]) for rows in order], test


def _idx(folder: Path, part: str) -> Samples:
    def read(what: str, header: int) -> np.ndarray:
        with gzip.open(folder / f"{part}-{what}-ubyte.gz") as file:
            return np.frombuffer(file.read(), np.uint8, offset=header)

    images = read("images-idx3", 16).reshape(-1, 784)
    return images.astype(np.float32) / np.float32(255), read("labels-idx1", 8).astype(np.int64)


def _prototypes(draw: np.random.Generator, samples: int, centres: np.ndarray, noise: float) -> Samples:
    y = draw.integers(0, len(centres), samples)
    x = draw.standard_normal((samples, centres.shape[1]), dtype=np.float32) * np.float32(noise)
    return x + centres.astype(np.float32)[y], y
