"""`atoll new`: write a commented job file to start from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

TEMPLATE = """\
# {name}: a federation, described. Try it: atoll explain {name}.toml, then atoll run {name}.toml
name = "{name}"
rounds = 50          # at most; see stop
seed = 0             # of everything random: a run is bit-for-bit reproducible
eval_every = 1            # rounds between two evaluations

# Whose data: a data set (atoll list data) and how it is divided (atoll list split, or by a key of the data).
# {hint}
data = {{ use = "{data}", {options} }}

# What parties compute (atoll list method) on which model (atoll list model).
# The learning rate may change over rounds: lr = {{ use = "exponential", start = 0.1, factor = 0.99 }}
method = {{ use = "fedavg", model = {{ use = "{model}" }}, epochs = 1, batch = 10, lr = 0.1 }}

# Who takes part in a round (atoll list select).
select = {{ use = "uniform", fraction = 0.5 }}

# What happens to a party's vector before it leaves (atoll list stage), and how vectors become one (atoll list combine).
# clip: no update is longer than this, and a server refuses one that is; atoll run notes how many were clipped.
# weigh: by examples, and nobody counts for more than so many; average: each party counts equally.
stages = [{{ use = "clip", norm = 5.0 }}, {{ use = "weigh", max_weight = 1000 }}]
combine = {{ use = "sum" }}

# Who is there: {{ use = "flaky", probability = 0.8 }}, {{ use = "always", drop = 0.1 }} … (atoll list availability)
availability = {{ use = "always" }}

# When to end before the last round (atoll list stop).
stop = [{{ use = "patience", metric = "{watched}", rounds = 20 }}]
"""

HOLDOUT = "test = 0.2 keeps a fifth of every party's samples for its own test."


class Start(NamedTuple):
    """What a data set needs: options, a model for its labels, and a word on the options."""

    options: str
    model: str = "softmax"
    hint: str = HOLDOUT
    watched: str = "test.loss"


CLASSES = Start('clients = 10, by = "dirichlet", test = 0.2')
NUMBERS = Start('clients = 10, by = "iid", test = 0.2', "linear")
STARTS = {
    "diabetes": NUMBERS,
    "california_housing": NUMBERS,
    "mnist_writers": Start('by = "writer", test = 0.2'),
    "heart_disease": Start('by = "hospital", test = 0.2'),
    "shakespeare": Start('by = "speaker", clients = 100', "char_lstm", "clients = 100 takes so many of the speakers."),
    "synthetic": Start("clients = 30, alpha = 0.5, beta = 0.5", hint="alpha and beta say how much parties differ."),
    "csv": Start(
        'path = "{name}.csv", target = "label", clients = 10, test = 0.2',
        hint='path: your file, CSV or Parquet; target: the column to predict (numbers: model "linear"); client = "…", '
        "instead of\n# clients = 10: the column that says who holds a row.",
    ),
    "schema": Start(
        'target = {{ name = "label", values = ["no", "yes"] }}, features = [{{ name = "age", unit = "years" }}], '
        "test = 0.2",
        hint="No samples here: serve it (atoll serve), and parties bring theirs. State all columns, see docs/data.md.",
        watched="local.loss",
    ),
    "saved": Start('folder = "{name}"', hint='folder: where Federated.save wrote it; for numbers take model "linear".'),
}


def new_job(name: str, data: str) -> None:
    """Write NAME.toml."""
    from atoll.core.errors import nearest
    from atoll.data import names
    from atoll.job.catalogue import BadJob

    path = Path(f"{name.removesuffix('.toml')}.toml")
    name = path.stem
    if path.exists():
        raise BadJob(f"{path} exists already: choose another name, or remove it")
    if data not in names():
        raise BadJob(f"--data {data}: there is no such data set; {nearest(data, names())}")
    if not path.parent.is_dir():
        raise BadJob(f"{path}: there is no folder {path.parent}; make it first")
    start = STARTS.get(data, CLASSES)
    options = start.options.format(name=name)
    said = TEMPLATE.format(
        name=name, data=data, options=options, model=start.model, hint=start.hint, watched=start.watched
    )
    path.write_text(said, encoding="utf-8")
    sys.stdout.write(f"wrote {path}; see what it would do with: atoll explain {path}\n")
