"""Open the folder of a run again: its curves, its report, and what its model says of rows."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.journal import read
from atoll.journal.read import FORMAT, NoRun
from atoll.runtimes.given import check_folder
from atoll.runtimes.run import Run

if TYPE_CHECKING:
    from atoll.data.federated import Federated

_CHANNEL = ("stages", "combine")


def open_run(folder: str | Path, data: Federated | None = None) -> Run:
    """Return the run in a folder, of this release or of release 0.1. Its state is that of the newest checkpoint.

    The parts that the folder's job names are imported, as by `atoll run`: open folders that you trust. The
    channel of a job of release 0.1 is not read: it may be one that is refused now.

    Args:
        folder: the run folder.
        data: samples of the form that the run was made with. Default: the data that the folder's job names.

    Raises:
        NoRun: the folder holds no run, or no checkpoint of it.

    Example:
        >>> import tempfile
        >>> import atoll
        >>> data = atoll.data.load("wine").split(5, seed=0)
        >>> job = atoll.Job(atoll.FedAvg(atoll.models.softmax()), atoll.All(), rounds=2)
        >>> run = atoll.simulate(job, data, out=tempfile.mkdtemp())
        >>> bool((atoll.open_run(run.folder).vector == run.vector).all())
        True
    """
    from atoll.data import build
    from atoll.data.checks import check_federated
    from atoll.job.assemble import summary_of
    from atoll.job.file import any_from_table
    from atoll.job.roles import RoleJob

    check_folder("folder", folder)
    if data is not None:
        check_federated(data)
    record = read(folder)
    memory, _, damaged = record.past()
    if memory is None:
        found = f" ({'; '.join(damaged)})" if damaged else ""
        raise NoRun(f"{folder} holds no whole checkpoint{found}: run its job.toml again")
    for sentence in damaged:
        warnings.warn(sentence, stacklevel=2)
    old = record.format < FORMAT
    table = {key: value for key, value in record.job.items() if not (old and key in _CHANNEL)}
    said = any_from_table(table)
    if isinstance(said, RoleJob):
        raise NoRun(f"{folder} holds a program with roles: each role has a model of its own, in model-ROLE.safetensors")
    method = said.job.method.bind(summary_of(build(said.data, said.seed) if data is None else data))
    about: dict[str, Any] = next((fact for fact in record.facts if fact["what"] == "start"), {})
    return Run(replace(said.job, method=method), memory["state"], record.facts, record.folder, about)
