"""What parties hold: the samples of a million parties in a few arrays. Nothing here reads files or trains."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, Any]
Kind = Literal["classes", "real"]


@dataclass(frozen=True, eq=False)
class Silos:
    """Samples of many parties, end to end: party k holds the positions offsets[k] … offsets[k+1].

    Without an index a position is a row of x and y, so a party is a slice. With one, position p is row index[p]:
    parties may then share rows of a pool, and a million of them cost one small integer a sample.
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
    """A federation's data: what each party trains on, what it tests on itself, and a central test set.

    `test` holds the central test set cut into parts (the parts are only units of work). `own` holds the parties' own
    test samples, party for party as in `train`. `recipe` is how all this was made, as written in a job file.
    """

    train: Silos
    test: Silos | None = None
    own: Silos | None = None
    kind: Kind = "classes"
    classes: int = 0
    features: tuple[str, ...] = ()
    parties: tuple[str, ...] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.train)

    def name(self, k: int) -> str:
        """Return the name of party k (a number where the data gives none)."""
        return self.parties[k] if self.parties else str(k)

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
        rooms = {"train": self.train, "test": self.test, "own": self.own}
        for room, silos in rooms.items():
            for name in ("x", "y", "offsets", "index") if silos else ():
                array = getattr(silos, name)
                if array is not None:
                    np.save(folder / f"{room}.{name}.npy", array)
        about = {"kind": self.kind, "classes": self.classes, "features": self.features, "parties": self.parties}
        (folder / "about.json").write_text(json.dumps({**about, "recipe": dict(self.recipe)}))
        return folder

    @staticmethod
    def open(folder: str | Path) -> Federated:
        """Map a saved federation: only the pages that a cohort touches are ever read."""
        import json

        folder = Path(folder)
        if not (folder / "about.json").is_file():
            raise FileNotFoundError(f"{folder} holds no saved federation: write one with Federated.save(folder)")
        about = json.loads((folder / "about.json").read_text())
        about["features"], about["parties"] = tuple(about["features"]), tuple(about["parties"])

        def room(name: str) -> Silos | None:
            if not (folder / f"{name}.x.npy").is_file():
                return None
            files = {p: folder / f"{name}.{p}.npy" for p in ("x", "y", "offsets", "index")}
            return Silos(**{p: _mapped(f, p) for p, f in files.items() if f.is_file()})

        train = room("train")
        if train is None:
            raise FileNotFoundError(f"{folder}/train.x.npy is missing: save the federation again")
        return Federated(train, room("test"), room("own"), **about)
