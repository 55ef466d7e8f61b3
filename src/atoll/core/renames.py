"""Parts, fields and members of release 0.1 and what they are called now, as plain tables.

A call or a job file with an old name is refused with the new one. Words of files alone are in `atoll.job.renames`.
"""

from __future__ import annotations

# By kind of part: its old name and the new one.
PARTS = {
    "select": {"over": "oversample", "in_turn": "round_robin"},
    "stage": {"tree": "tree_noise"},
    "stop": {"still": "converged"},
}
# By part: fields that have another name now. None: there is no such field any more.
METHODS = ("fedavg", "fedsgd", "fedprox", "fedavgm", "fedadam", "fedyogi", "fedadagrad")
FIELDS: dict[str, dict[str, str | None]] = {
    **{method: {"private": "example_dp"} for method in METHODS},
    "weigh": {"most": "max_weight"},
    "buffered": {"enough": "buffer_size", "most": "max_staleness"},
    "secure_sum": {"least": "min_parties", "real": None},
    "light_sum": {"real": None},
    "encrypted_sum": {"holders": "key_holders", "real": None},
    "patience": {"least": "min_delta"},
    "job": {"every": "eval_every"},
}
# Members of a part of one's own.
MEMBERS = {"share": "broadcast", "task": "client_update", "merge": "server_update", "width": "group_size"}


def public(name: str) -> str | None:
    """Return what a public name of release 0.1 is called now; None if it is no such name.

    Args:
        name: the old name.
    """
    parts = {old: new for kind in PARTS.values() for old, new in kind.items()} | {"server": "server_optimiser"}
    return {_camel(old): _camel(new) for old, new in parts.items()}.get(name)


def _camel(name: str) -> str:
    return name.title().replace("_", "")
