"""Made-up federations of any size: the synthetic(α, β) of FedProx, and virtual clients over a pool of real rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from .draws import generator
from .errors import BadData, number, whole
from .federated import Array, Federated, Silos
from .table import central

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

    def recipe(self) -> dict[str, Any]:
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
    """Points made up as in FedProx (Li et al. 2020): each client has its own linear model and its own cloud of points.

    u ~ N(0, α), W and b ~ N(u, 1); B ~ N(0, β), v ~ N(B, 1), x ~ N(v, Σ) with Σ_jj = j^-1.2; y = argmax(Wx + b).
    α and β are deviations, as in the authors' generator. Sizes are lognormal(4, 2) + 50, or `samples` each, or
    lognormal with that mean and `spread` as deviation of the logarithm. `iid` (with α = β = 0) shares one W, b and
    v = 0. `test` more samples, from clients in proportion to their size, are the central test set. With a `folder`
    the arrays are written there block by block and mapped, so that a million clients need little memory.
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


def _in_memory(plan: _Plan, recipe: dict[str, Any]) -> Federated:
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


def _in_folder(plan: _Plan, recipe: dict[str, Any], folder: Path) -> Federated:
    """Write the arrays in blocks; a folder that already holds the same federation is only mapped."""
    made = asdict(plan)
    mark = folder / "made.json"
    if mark.is_file() and json.loads(mark.read_text()) == made:
        return Federated.open(folder)
    folder.mkdir(parents=True, exist_ok=True)
    mark.unlink(missing_ok=True)
    sizes = plan.sizes()
    total = int(sizes.sum())
    rooms = {"train": total, "test": plan.test} if plan.test else {"train": total}
    for room in ("train", "test", "own"):
        for part in ("x", "y", "offsets", "index"):
            (folder / f"{room}.{part}.npy").unlink(missing_ok=True)
    files: dict[str, tuple[IO[bytes], IO[bytes]]] = {}
    try:
        for room, rows in rooms.items():
            files[room] = (
                _npy(folder / f"{room}.x.npy", (rows, plan.features), "<f4"),
                _npy(folder / f"{room}.y.npy", (rows,), "<i4"),
            )
        for x, y, held in _blocks(plan, sizes):
            for room, (xs, ys) in files.items():
                chosen = held if room == "test" else ~held
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
    """A virtual population: so many clients of so many rows drawn from one federation's, without copying a row.

    Clients share rows, as they must when there are more of them than data; the test sets stay.
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
    return replace(federated, train=Silos(pool.x, pool.y, offsets, index), own=None, parties=(), recipe=recipe)
