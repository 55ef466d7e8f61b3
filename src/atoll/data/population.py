"""Made-up federations of any size: the synthetic(α, β) of FedProx, and virtual clients over a pool of real rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import IO

import numpy as np

from atoll.core.keys import generator
from atoll.core.tree import Array
from atoll.data.errors import BadData, number, whole
from atoll.data.federated import Federated, Silos
from atoll.data.table import central

BLOCK = 256  # clients drawn at once; part of the recipe, since each block has its own generator


@dataclass(frozen=True)
class _Plan:
    clients: int
    alpha: float = 1.0
    beta: float = 1.0
    samples: int | None = None
    spread: float = 0.0
    features: int = 60
    classes: int = 10
    iid: bool = False
    test: int = 10_000
    seed: int = 0

    def __post_init__(self) -> None:
        for option, least in {"clients": 1, "features": 1, "classes": 2, "test": 0}.items():
            whole(option, getattr(self, option), least)
        if self.samples is not None:
            whole("samples", self.samples, 1)
        for option in ("alpha", "beta", "spread"):
            number(option, getattr(self, option))
        if self.iid and (self.alpha, self.beta) != (0, 0):
            raise BadData("iid clients share one model: say alpha = 0 and beta = 0 with iid")

    def recipe(self) -> dict[str, object]:
        """Say what differs from the usual, as a job file would."""
        said = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return {"use": "synthetic", **said}

    def sizes(self) -> Array:
        rng = generator(self.seed, "synthetic", "sizes")
        if self.samples is None:
            return np.minimum(rng.lognormal(4, 2, self.clients), 1e6).astype(np.int64) + 50
        bell = rng.standard_normal(self.clients)
        drawn = self.samples * np.exp(self.spread * bell - self.spread**2 / 2)
        return np.maximum(1, np.rint(drawn)).astype(np.int64)


def synthetic(
    clients: int,
    alpha: float = 1.0,
    beta: float = 1.0,
    *,
    samples: int | None = None,
    spread: float = 0.0,
    features: int = 60,
    classes: int = 10,
    iid: bool = False,
    test: int = 10_000,
    seed: int = 0,
    folder: str | Path | None = None,
) -> Federated:
    """Generate data as in FedProx, synthetic with α and β (Li et al. 2020): each party has its own model and inputs.

    u ~ N(0, α), W and b ~ N(u, 1); B ~ N(0, β), v ~ N(B, 1), x ~ N(v, Σ) with Σ_jj = j^-1.2; y = argmax(Wx + b).

    Args:
        clients: number of parties, 1 or more.
        alpha: standard deviation of the models' means, 0 or more: how much the models differ. Default 1.0.
        beta: standard deviation of the inputs' means, 0 or more: how much the inputs differ. Default 1.0.
        samples: mean number of samples of a party, 1 or more. Default: lognormal(4, 2) + 50, as in the paper.
        spread: with `samples`, standard deviation of the logarithm of the sizes, 0 or more. Default 0: equal sizes.
        features: number of features, 1 or more. Default 60.
        classes: number of classes, 2 or more. Default 10.
        iid: whether all parties share one model and v = 0; needs alpha = beta = 0. Default false.
        test: samples of the central test set, from parties in proportion to their size. Default 10,000.
        seed: of the generator. Default 0.
        folder: where to write the arrays block by block, to be memory-mapped. Default: they stay in memory.

    Example:
        >>> import atoll
        >>> data = atoll.data.synthetic(30, alpha=1.0, beta=1.0, samples=40, test=200, seed=1)
        >>> len(data), data.train.x.shape
        (30, (1200, 60))
    """
    plan = _Plan(clients, alpha, beta, samples, spread, features, classes, iid, test, seed)
    if folder is None:
        return _in_memory(plan, plan.recipe())
    return _in_folder(plan, plan.recipe() | {"folder": str(folder)}, Path(folder))


def _blocks(plan: _Plan, sizes: Array) -> Iterator[tuple[Array, Array, Array]]:
    """Draw the samples of BLOCK clients after another: (x, y, whether for the central test)."""
    ends = np.cumsum(sizes)
    # Cumulative rounding: exactly `test` rows in all, from each client in proportion to its size.
    tests = np.diff(plan.test * ends // ends[-1], prepend=0)
    deviation = (np.arange(1, plan.features + 1) ** -0.6).astype(np.float32)
    shape = (plan.features + 1, plan.classes)  # the last row is the bias
    shared = generator(plan.seed, "synthetic", "shared").standard_normal(shape, np.float32)
    for start in range(0, plan.clients, BLOCK):
        rng = generator(plan.seed, "synthetic", start)
        size, extra = sizes[start : start + BLOCK], tests[start : start + BLOCK]
        count, many = size + extra, len(size)
        weights = rng.standard_normal((many, *shape), np.float32)
        weights += rng.normal(0, plan.alpha, (many, 1, 1)).astype(np.float32)
        centre = rng.standard_normal((many, plan.features), np.float32)
        centre += rng.normal(0, plan.beta, (many, 1)).astype(np.float32)
        if plan.iid:
            weights[:], centre[:] = shared, 0
        stops = np.cumsum(count)
        x = rng.standard_normal((int(stops[-1]), plan.features), np.float32)
        x *= deviation
        x += np.repeat(centre, count, axis=0)
        y = np.empty(len(x), np.int32)
        for k, (a, b) in enumerate(zip(stops - count, stops, strict=True)):
            y[a:b] = np.argmax(x[a:b] @ weights[k, :-1] + weights[k, -1], axis=1)
        place = np.arange(len(x)) - np.repeat(stops - count, count)
        yield x, y, place >= np.repeat(size, count)


def _in_memory(plan: _Plan, recipe: dict[str, object]) -> Federated:
    sizes = plan.sizes()
    total = int(sizes.sum())
    x, y = np.empty((total, plan.features), np.float32), np.empty(total, np.int32)
    test_x, test_y = np.empty((plan.test, plan.features), np.float32), np.empty(plan.test, np.int32)
    a = b = 0
    for block, labels, held in _blocks(plan, sizes):
        kept, more = int(np.count_nonzero(~held)), int(np.count_nonzero(held))
        x[a : a + kept], y[a : a + kept] = block[~held], labels[~held]
        test_x[b : b + more], test_y[b : b + more] = block[held], labels[held]
        a, b = a + kept, b + more
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    tests = central(test_x, test_y) if plan.test else None
    return Federated(Silos(x, y, offsets), tests, kind="classes", classes=plan.classes, recipe=recipe)


def _in_folder(plan: _Plan, recipe: dict[str, object], folder: Path) -> Federated:
    """Write the arrays in blocks; a folder that already holds the same federation is only mapped."""
    made = asdict(plan)
    mark = folder / "made.json"
    if mark.is_file() and json.loads(mark.read_text()) == made:
        return Federated.open(folder)
    folder.mkdir(parents=True, exist_ok=True)
    mark.unlink(missing_ok=True)
    sizes = plan.sizes()
    total = int(sizes.sum())
    splits = {"train": total, "test": plan.test} if plan.test else {"train": total}
    for split in ("train", "test", "local"):
        for part in ("x", "y", "offsets", "index"):
            (folder / f"{split}.{part}.npy").unlink(missing_ok=True)
    files: dict[str, tuple[IO[bytes], IO[bytes]]] = {}
    try:
        for split, rows in splits.items():
            files[split] = (
                _npy(folder / f"{split}.x.npy", (rows, plan.features), "<f4"),
                _npy(folder / f"{split}.y.npy", (rows,), "<i4"),
            )
        for x, y, held in _blocks(plan, sizes):
            for split, (xs, ys) in files.items():
                chosen = held if split == "test" else ~held
                xs.write(x[chosen].data)
                ys.write(y[chosen].data)
    finally:
        for pair in files.values():
            for file in pair:
                file.close()
    np.save(folder / "train.offsets.npy", np.concatenate([[0], np.cumsum(sizes)]))
    if plan.test:
        np.save(folder / "test.offsets.npy", central(np.empty(plan.test), np.empty(plan.test)).offsets)
    about = {"kind": "classes", "classes": plan.classes, "features": [], "parties": [], "recipe": recipe}
    (folder / "about.json").write_text(json.dumps(about))
    mark.write_text(json.dumps(made))  # last: it says that all the rest is whole
    return Federated.open(folder)


def _npy(path: Path, shape: tuple[int, ...], kind: str) -> IO[bytes]:
    """Open a .npy file to be filled row after row; unlike a written map, its pages do not stay in memory."""
    file = path.open("wb")
    header = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file


def pooled(federated: Federated, clients: int, samples: int, seed: int = 0) -> Federated:
    """Make a virtual population: parties that share the rows of one federation, without a copy. The test sets stay.

    Args:
        federated: the federation whose training rows are drawn.
        clients: number of parties, 1 or more.
        samples: rows of each party, 1 or more.
        seed: of the draw. Default 0.

    Example:
        >>> import atoll
        >>> many = atoll.data.pooled(atoll.data.load("digits").split(1), clients=1000, samples=20)
        >>> len(many), int(many.train.sizes.sum())
        (1000, 20000)
    """
    whole("clients", clients, 1)
    whole("samples", samples, 1)
    pool = federated.train
    held = int(pool.offsets[-1])
    if held > np.iinfo(np.int32).max:
        raise BadData(f"a pool of {held} rows is too large to refer to in 32 bits: pool at most 2^31 - 1 rows")
    index = generator(seed, "pooled").integers(0, held, clients * samples, dtype=np.int32)
    if pool.index is not None:
        index = np.asarray(pool.index)[index].astype(np.int32)
    offsets = np.arange(clients + 1, dtype=np.int64) * samples
    recipe = {**federated.recipe, "pooled": {"clients": clients, "samples": samples}}
    return replace(federated, train=Silos(pool.x, pool.y, offsets, index), local=None, parties=(), recipe=recipe)
