"""From the data table of a job file to a federation. Recipes are plain words and numbers, so they survive TOML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .catalogue import FEDERATIONS, TABLES, load, names
from .errors import BadData, accept, options_of, unknown
from .federated import Federated
from .partition import SCHEMES
from .population import pooled

SPLIT = ("clients", "by", "seed", "test")


def build(recipe: Mapping[str, Any], seed: int = 0) -> Federated:
    """Make the federation that a job file describes: {use = "mnist", clients = 100, by = "shards", …}.

    `seed` is the job's; a seed in the recipe pins the data whatever the job's seed is. A table
    `pooled = {clients, samples}` in the recipe makes a virtual population of the rows.
    """
    words = dict(recipe)
    if not isinstance(words.get("use"), str):
        raise BadData("the data names no data set: add use = one of " + ", ".join(names()))
    use, pool, seed = words.pop("use"), words.pop("pooled", None), words.pop("seed", seed)
    made = _federation(use, words, seed) if use in FEDERATIONS else _split(use, words, seed, pool is not None)
    if pool is not None:
        if set(pool) != {"clients", "samples"}:
            raise BadData("pooled needs clients and samples and nothing else: pooled = { clients = N, samples = n }")
        made = pooled(made, **pool, seed=seed)
    return made if use == "saved" and pool is None else replace(made, recipe=dict(recipe))


def _federation(use: str, words: dict[str, Any], seed: int) -> Federated:
    maker = FEDERATIONS[use]
    accept(use, maker, words)
    return maker(**words, seed=seed) if "seed" in options_of(maker) else maker(**words)


def _split(use: str, words: dict[str, Any], seed: int, whole: bool) -> Federated:
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
    return table.split(**split, seed=seed)
