"""From the data table of a job file to a federation. Recipes are plain words and numbers, so they survive TOML."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from atoll.data.catalogue import FEDERATIONS, TABLES, load, names
from atoll.data.errors import BadData, accept, options_of, seed_number, unknown
from atoll.data.federated import Federated
from atoll.data.partition import SCHEMES
from atoll.data.population import pooled

SPLIT = ("clients", "by", "seed", "test")


def build(recipe: Mapping[str, object], seed: int = 0) -> Federated:
    """Make the federation that `data` of a job file describes.

    Args:
        recipe: `use` names the data set, the other keys are its options and those of the split. A table `pooled` with
            `clients` and `samples` makes a virtual population of the rows. A `seed` replaces the job's.
        seed: of the job. Default 0.

    Example:
        >>> import atoll
        >>> len(atoll.data.build({"use": "digits", "clients": 20, "by": "shards", "per_client": 2}))
        20
    """
    words = dict(recipe)
    use, pool = words.pop("use", None), words.pop("pooled", None)
    if not isinstance(use, str):
        raise BadData("the data names no data set: add use = one of " + ", ".join(names()))
    pinned = seed_number(words.pop("seed", seed))
    made = _federation(use, words, pinned) if use in FEDERATIONS else _split(use, words, pinned, pool is not None)
    if pool is not None:
        if not isinstance(pool, Mapping) or set(pool) != {"clients", "samples"}:
            raise BadData("pooled needs clients and samples and nothing else: pooled = { clients = N, samples = n }")
        made = pooled(made, **pool, seed=pinned)
    return made if use == "saved" and pool is None else replace(made, recipe=dict(recipe))


def _federation(use: str, words: dict[str, object], seed: int) -> Federated:
    maker = FEDERATIONS[use]
    accept(use, maker, words)
    return maker(**words, seed=seed) if "seed" in options_of(maker) else maker(**words)


def _split(use: str, words: dict[str, object], seed: int, whole: bool) -> Federated:
    if use not in TABLES:
        load(use)  # refuses, with the nearest name
    how = words.get("by") or ("iid" if "clients" in words else None)
    own = set(options_of(TABLES[use]))
    dealing = set(SPLIT) | (set(options_of(SCHEMES[how])) if how in SCHEMES else set())
    for word in words:
        if word not in own | dealing:
            raise unknown(f"option of {use}" + (f" split by {how}" if how else ""), word, own | dealing | {"pooled"})
    table = load(use, **{word: value for word, value in words.items() if word in own})
    split = {word: value for word, value in words.items() if word not in own}
    if whole and not {"clients", "by"} & set(split):
        split["clients"] = 1
    deal: Callable[..., Federated] = table.split  # options are known by their names only
    return deal(**split, seed=seed)
