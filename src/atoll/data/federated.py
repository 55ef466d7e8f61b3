"""What parties hold: the samples of a million parties in a few arrays. Nothing here reads files or trains."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from atoll.core.tree import Array
from atoll.data.errors import BadData, DataMissing
from atoll.data.schema import Column, TableSchema

Kind = Literal["classes", "real"]


@dataclass(frozen=True, eq=False)
class Silos:
    """Samples of many parties in one array: party k holds the positions offsets[k] to offsets[k+1].

    Without an index a position is a row of x and y, so a party is a slice. With one, position p is row index[p]:
    parties can then share rows, and each sample of a party costs one small integer.

    Args:
        x: rows of features.
        y: labels, one for each row (or a row of labels).
        offsets: start of each party, and the end of the last one: one more than there are parties.
        index: row of each position. Default: position p is row p.

    Example:
        >>> import numpy as np
        >>> from atoll.data import Silos
        >>> silos = Silos(np.arange(10).reshape(5, 2), np.arange(5), np.array([0, 2, 5]))
        >>> len(silos), silos.sizes.tolist(), silos[1][1].tolist()
        (2, [2, 3], [2, 3, 4])
    """

    x: Array
    y: Array
    offsets: Array
    index: Array | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Array:
        """Samples of every party."""
        return np.diff(self.offsets)

    def rows(self, k: int) -> slice | Array:
        """What to index x and y with to get party k's samples."""
        a, b = int(self.offsets[k]), int(self.offsets[k + 1])
        return slice(a, b) if self.index is None else self.index[a:b]

    def __getitem__(self, k: int) -> tuple[Array, Array]:
        if not 0 <= k < len(self):
            raise IndexError(f"party {k}: there are {len(self)}")
        rows = self.rows(k)
        return self.x[rows], self.y[rows]

    def __iter__(self) -> Iterator[tuple[Array, Array]]:
        return (self[k] for k in range(len(self)))


def _mapped(file: Path, name: str) -> Array:
    """Map an array; offsets are small and looked up for everybody, so they are loaded."""
    array: Array = np.load(file, mmap_mode=None if name == "offsets" else "r")
    if isinstance(array.base, mmap.mmap) and hasattr(mmap, "MADV_RANDOM"):
        array.base.madvise(mmap.MADV_RANDOM)  # a cohort is scattered: what lies around a party is not wanted
    return array


@dataclass(frozen=True, eq=False)
class Federated:
    """The data of a federation: what each party trains on, its own test data, and a central test set.

    Args:
        train: the training samples of each party.
        test: the central test set, in parts (the parts are only units of work). Default: none.
        local: the parties' own test samples, in the order of `train`. Default: none.
        kind: "classes" (the default) or "real".
        classes: number of classes; 0 (the default) for real targets.
        features: names of the columns. Default: none.
        parties: names of the parties. Default: they are numbered.
        recipe: how the data was made, as in a job file.
        scaled: numbers of the columns that were shifted and scaled by the statistics of everybody's training rows.
        schema: what its columns mean. Default: not known.

    Example:
        >>> import atoll
        >>> data = atoll.data.load("digits").split(10, test=0.2, seed=0)
        >>> len(data), data.classes, len(data.train[0][1]), len(data.local[0][1])
        (10, 10, 114, 29)
    """

    train: Silos
    test: Silos | None = None
    local: Silos | None = None
    kind: Kind = "classes"
    classes: int = 0
    features: tuple[str, ...] = ()
    parties: tuple[str, ...] = ()
    recipe: Mapping[str, object] = field(default_factory=dict)
    scaled: tuple[int, ...] = ()
    schema: TableSchema | None = None

    def __len__(self) -> int:
        return len(self.train)

    def name(self, k: int) -> str:
        """Return the name of party k (a number where the data gives none)."""
        return self.parties[k] if self.parties else str(k)

    def arranged(self, schema: TableSchema) -> Federated:
        """Return the same data with its columns in the order that a schema states; refuse other columns or classes."""
        if not self.features:
            raise BadData("the data has no names of columns, and the job states a schema: bring a CSV or Parquet file")
        theirs = self.schema or TableSchema(tuple(map(Column, self.features)), schema.target)
        schema.refuse(theirs, "the data")
        classes, missing = schema.target.values or (), [name for name in schema.names if name not in self.features]
        if (self.classes, theirs.target.values or ()) != (len(classes), classes):
            raise BadData(f"the data numbers other classes than the job: {', '.join(classes) or 'none, but numbers'}")
        if missing:
            raise BadData(f"the data has no feature {missing[0]!r}, which the job needs: write it again from its file")
        order = [self.features.index(name) for name in schema.names]

        def sorted_(silos: Silos | None) -> Silos | None:
            return None if silos is None else replace(silos, x=silos.x[:, order])

        train = sorted_(self.train)
        assert train is not None
        test, local = sorted_(self.test), sorted_(self.local)
        return replace(self, train=train, test=test, local=local, features=schema.names, schema=schema)

    def label_counts(self, most: int = 200) -> tuple[Array, Array]:
        """Choose at most this many parties evenly; return them and their label counts, (parties, classes)."""
        chosen = np.unique(np.linspace(0, len(self) - 1, min(most, len(self))).astype(int))
        if self.kind != "classes":
            return chosen, self.train.sizes[chosen][:, None]
        counts = [np.bincount(np.ravel(self.train[int(k)][1]), minlength=self.classes) for k in chosen]
        return chosen, np.stack(counts)

    def save(self, folder: str | Path) -> Path:
        """Write the arrays so that `Federated.open` can map them instead of loading them."""
        import json

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        splits = {"train": self.train, "test": self.test, "local": self.local}
        for split, silos in splits.items():
            for name in ("x", "y", "offsets", "index") if silos else ():
                array = getattr(silos, name)
                if array is not None:
                    np.save(folder / f"{split}.{name}.npy", array)
        about = {"kind": self.kind, "classes": self.classes, "features": self.features, "parties": self.parties}
        meant = {} if self.schema is None else {"schema": self.schema.table()}
        more = {"recipe": dict(self.recipe), "scaled": self.scaled, **meant}
        (folder / "about.json").write_text(json.dumps({**about, **more}))
        return folder

    @staticmethod
    def open(folder: str | Path) -> Federated:
        """Map a saved federation: only the pages that a cohort touches are ever read."""
        import json

        folder = Path(folder)
        if not (folder / "about.json").is_file():
            raise DataMissing(f"{folder} holds no saved federation: write one with Federated.save(folder)")
        about = json.loads((folder / "about.json").read_text())
        about |= {name: tuple(about.get(name, ())) for name in ("features", "parties", "scaled")}
        about["schema"] = TableSchema.of(about["schema"]) if "schema" in about else None

        def split(name: str) -> Silos | None:
            if not (folder / f"{name}.x.npy").is_file():
                return None
            files = {p: folder / f"{name}.{p}.npy" for p in ("x", "y", "offsets", "index")}
            return Silos(**{p: _mapped(f, p) for p, f in files.items() if f.is_file()})

        if (folder / "own.x.npy").is_file():
            raise BadData(
                f"{folder} was saved by release 0.1, which called a party's own test data own: rename its files "
                "own.*.npy to local.*.npy"
            )
        train = split("train")
        if train is None:
            raise DataMissing(f"{folder}/train.x.npy is missing: save the federation again")
        return Federated(train, split("test"), split("local"), **about)
