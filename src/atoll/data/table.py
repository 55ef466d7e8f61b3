"""A table: samples that nobody holds yet, with the keys by which they can be divided. Nothing here reads files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from atoll.core.keys import generator
from atoll.core.tree import Array
from atoll.data.errors import BadData, number, seed_number, unknown
from atoll.data.federated import Federated, Kind, Silos
from atoll.data.partition import SCHEMES, equal, natural, partition
from atoll.data.schema import TableSchema

PART = 2_500  # rows of a central test part: large enough to be fast, small enough to spread over cores


@dataclass(frozen=True, eq=False)
class Table:
    """Samples that no party has yet, with the keys by which they can be divided. `split` makes a federation.

    Args:
        x: rows of features.
        y: labels, one for each row (or a row of labels).
        test_x: rows of the central test set. Default: none.
        test_y: their labels.
        kind: "classes" (the default) or "real".
        classes: number of classes; 0 (the default) for real targets.
        features: names of the columns. Default: none.
        keys: natural keys, such as a hospital, with one value for each row.
        test_keys: the same for the test rows. A party made by such a key gets its test rows as its own test data.
        name: of the data set. Default "arrays".
        recipe: how it was made, as in a job file.
        scaled: numbers of the columns that were shifted and scaled by the statistics of all training rows.
        schema: what its columns mean. Default: not known.

    Example:
        >>> import atoll
        >>> table = atoll.data.load("digits")
        >>> len(table), len(table.split(10, by="shards", per_client=2, seed=0))
        (1438, 10)
    """

    x: Array
    y: Array
    test_x: Array | None = None
    test_y: Array | None = None
    kind: Kind = "classes"
    classes: int = 0
    features: tuple[str, ...] = ()
    keys: Mapping[str, Array] = field(default_factory=dict)
    test_keys: Mapping[str, Array] = field(default_factory=dict)
    name: str = "arrays"
    recipe: Mapping[str, object] = field(default_factory=dict)
    scaled: tuple[int, ...] = ()
    schema: TableSchema | None = None

    def __len__(self) -> int:
        return len(self.y)

    def split(
        self,
        clients: int | None = None,
        by: str | None = None,
        *,
        seed: int | None = None,
        test: float = 0.0,
        **options: object,
    ) -> Federated:
        """Divide the samples among parties: by a scheme of `partition`, or by a key of the table.

        `test` is the fraction of each party's samples held out as its own test data. Without `by` it is iid, and
        without `clients` too it is the table's one natural key.
        """
        if seed is not None:
            seed_number(seed)
        how = by or self._default(clients)
        rng = generator(seed or 0, "split", how)
        names: tuple[str, ...] = ()
        if how in self.keys:
            if options:
                raise unknown(f"option of a split by {how}", next(iter(options)), ())
            order, offsets, chosen = natural(self.keys[how], clients, rng)
            names = tuple(str(name) for name in chosen)
        elif how not in SCHEMES:
            raise unknown("partition", how, [*SCHEMES, *self.keys])
        elif clients is None:
            raise BadData(f"a split by {how} needs a number of clients: add clients = N")
        else:
            order, offsets = partition(how, self.y, clients, rng, **options)
        said = {"clients": clients, "by": by, "seed": seed, "test": test or None} | options
        recipe = {"use": self.name} | dict(self.recipe) | {k: v for k, v in said.items() if v is not None}
        train, local = self._silos(order, offsets, test, generator(seed or 0, "own"))
        if local is None and how in self.test_keys:
            local = self._own(how, names)
        about = (self.kind, self.classes, self.features, names, recipe, self.scaled, self.schema)
        return Federated(train, self._central(), local, *about)

    def holdout(self, fraction: float = 0.2, seed: int = 0) -> Table:
        """Take a central test set out of the training rows; a fraction of 0 takes none."""
        if number("the test fraction", fraction, below=1) == 0:
            return self
        seed_number(seed)
        count = min(max(1, round(len(self) * fraction)), len(self) - 1)
        if count < 1:
            raise BadData("a table of one row has none to test on: give a test fraction of 0")
        lot = generator(seed, "holdout").permutation(len(self))
        test, train = np.sort(lot[:count]), np.sort(lot[count:])
        return replace(
            self,
            x=self.x[train],
            y=self.y[train],
            test_x=self.x[test],
            test_y=self.y[test],
            keys={name: key[train] for name, key in self.keys.items()},
            test_keys={name: key[test] for name, key in self.keys.items()},
        )

    def standardised(self, target: bool = False) -> Table:
        """Shift and scale each feature (and a real target) by the training rows' mean and deviation."""
        x, test_x = _scale(self.x, self.test_x)
        y, test_y = _scale(self.y, self.test_y) if target else (self.y, self.test_y)
        return replace(self, x=x, y=y, test_x=test_x, test_y=test_y, scaled=tuple(range(x.shape[1])))

    def _default(self, clients: int | None) -> str:
        if clients is not None:
            return "iid"
        if len(self.keys) != 1:
            choice = f" or by = one of {', '.join(sorted(self.keys))}" if self.keys else ""
            raise BadData(f"{self.name} does not say who holds what: add clients = N{choice}")
        return next(iter(self.keys))

    def _silos(self, order: Array, offsets: Array, test: float, rng: np.random.Generator) -> tuple[Silos, Silos | None]:
        if number("test", test, below=1) == 0:
            return Silos(self.x[order], self.y[order], offsets), None
        sizes = np.diff(offsets)
        held = np.clip(np.rint(sizes * test).astype(np.int64), 1, None)
        held = np.minimum(held, sizes - 1)
        party = np.repeat(np.arange(len(sizes)), sizes)
        lot = np.lexsort((rng.random(len(order)), party))
        mine = np.empty(len(order), bool)
        mine[lot] = np.arange(len(order)) - offsets[party] < held[party]
        train, local = order[~mine], order[mine]
        ends, own_ends = np.cumsum(sizes - held), np.cumsum(held)
        return (
            Silos(self.x[train], self.y[train], np.concatenate([[0], ends])),
            Silos(self.x[local], self.y[local], np.concatenate([[0], own_ends])),
        )

    def _own(self, key: str, names: tuple[str, ...]) -> Silos | None:
        """Point each party at the central test rows that carry its key, without copying them."""
        if self.test_x is None or self.test_y is None:
            return None
        place = {name: k for k, name in enumerate(names)}
        party = np.array([place.get(str(value), -1) for value in self.test_keys[key]])
        rows = np.flatnonzero(party >= 0)
        if not len(rows):
            return None
        index = rows[np.argsort(party[rows], kind="stable")].astype(np.int32)
        offsets = np.concatenate([[0], np.cumsum(np.bincount(party[rows], minlength=len(names)))])
        return Silos(self.test_x, self.test_y, offsets, index)

    def _central(self) -> Silos | None:
        if self.test_x is None or self.test_y is None:
            return None
        return central(self.test_x, self.test_y)


def central(x: Array, y: Array) -> Silos:
    """Cut a central test set into parts of equal size, at most PART rows each."""
    return Silos(x, y, equal(len(y), max(1, -(-len(y) // PART))))


def _scale(train: Array, test: Array | None) -> tuple[Array, Array | None]:
    scaled = standard(train)
    return scaled(train), None if test is None else scaled(test)


def standard(rows: Array) -> Callable[[Array], Array]:
    """Return what shifts and scales columns by the mean and the deviation that they have in these rows."""
    mean, deviation = rows.mean(axis=0, dtype=np.float64), rows.std(axis=0, dtype=np.float64)
    deviation = np.where(deviation > 0, deviation, 1.0)
    return lambda values: ((values - mean) / deviation).astype(np.float32)
