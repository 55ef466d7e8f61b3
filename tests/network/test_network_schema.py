"""Columns mean the same: a server without data states them; real files are put right, or refused by name."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from test_network_runs import ATOLL, Federation

import atoll
import spawn
from atoll.data import Column, TableSchema, federate, from_arrays, from_csv, stated
from atoll.data.errors import BadData

pytest.importorskip("grpc")

JOB = """
name = "ward"
rounds = 3
method = { use = "fedavg", model = "softmax", epochs = 1, batch = 10, lr = 0.05 }
select = "all"

[data]
use = "schema"
target = { name = "ill", values = ["no", "yes"] }
features = [
  { name = "age", unit = "years" },
  { name = "ward", values = ["east", "west"] },
  { name = "chol", unit = "mmol/l", fill = 5.5 },
]
"""
UNITS = 'units = { age = "years", chol = "mmol/l" }'


def rows(seed: int) -> list[dict[str, str]]:
    rng = np.random.default_rng(seed)
    found = []
    for k in range(40):
        age, chol = rng.uniform(-1, 1), rng.normal()
        ill = "yes" if age + 0.3 * chol > 0 else "no"
        cell = "?" if k == 7 else f"{chol:.3f}"
        found.append({"age": f"{age:.3f}", "ward": ("east", "west")[k % 2], "chol": cell, "ill": ill, "id": f"p{k}x"})
    return found


def write(path: Path, table: list[dict[str, str]], order: tuple[str, ...]) -> None:
    lines = [",".join(order), *(",".join(row[name] for name in order) for row in table)]
    path.write_text("\n".join(lines) + "\n")


def policy(file: str, units: str = UNITS) -> str:
    said = f'use = "csv", path = "{file}", target = "ill", missing = ["?"], {units}, holdout = 0.0, clients = 1'
    return f"allow_plain = true\ndata = {{ {said} }}\n"


def expected(table: list[dict[str, str]]) -> tuple[np.ndarray, np.ndarray]:
    x = [
        [float(r["age"]), r["ward"] == "east", r["ward"] == "west", 5.5 if r["chol"] == "?" else float(r["chol"])]
        for r in table
    ]
    return np.array(x, np.float32), np.array([r["ill"] == "yes" for r in table], np.int32)


def test_three_files_of_which_one_is_put_right_and_two_are_refused_by_name(tmp_path: Path) -> None:
    made = Federation(tmp_path, JOB)
    tables = {name: rows(k) for k, name in enumerate("abc")}
    write(tmp_path / "a.csv", tables["a"], ("ill", "id", "chol", "ward", "age"))  # another order, a column more
    write(tmp_path / "b.csv", tables["b"], ("id", "age", "ward", "ill"))  # a column less
    other = [{**row, "ill": "maybe" if k == 3 else row["ill"]} for k, row in enumerate(tables["c"])]
    write(tmp_path / "c.csv", other, ("age", "ward", "chol", "ill"))
    server = made.serve()
    try:
        said = 'units = { age = "years" }'
        refused = {"b": made.join("b", policy("b.csv", said)), "c": made.join("c", policy("c.csv"))}
        good = [made.join("a", policy("a.csv"))]
        assert [process.wait(60) for process in refused.values()] != [0, 0]
        logs = {name: (tmp_path / f"{name}.log").read_text() for name in "bc"}
        assert "the data of b: there is no column 'chol', which the job needs" in logs["b"]
        assert "the data of c: column 'ill' has class 'maybe', and the job's classes are no, yes" in logs["c"]
        assert all("Traceback" not in log for log in logs.values())
        facts = [fact for fact in made.facts() if fact["what"] == "refused"]
        assert {(fact["party"], "'chol'" in str(fact["why"])) for fact in facts} == {("b", True), ("c", False)}
        for name in "bc":
            write(tmp_path / f"{name}.csv", tables[name], ("age", "ward", "chol", "ill"))
            good.append(made.join(name, policy(f"{name}.csv")))
        assert server.wait(120) == 0, (tmp_path / "server.log").read_text()
        assert [process.wait(30) for process in good] == [0, 0, 0]
    finally:
        made.close()
    job = atoll.job.file.load(str(tmp_path / "job.toml")).job
    parts = [from_arrays(*expected(tables[name]), classes=2).split(1, seed=0).train[0] for name in "abc"]
    run = atoll.simulate(job, federate(parts), 0)
    alone = np.concatenate([np.ravel(run.params[name]) for name in sorted(run.params)])
    assert np.array_equal(made.model(), alone)  # as if all had written their columns alike


def test_a_job_without_samples_is_explained_and_refused_to_simulate(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    shown = spawn.run([*ATOLL, "explain", "job.toml", "--deployed"], cwd=tmp_path, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert "'age' in years" in shown.stdout
    assert "'chol' in mmol/l, missing cells become 5.5" in shown.stdout
    said = spawn.run([*ATOLL, "run", "job.toml"], cwd=tmp_path, capture_output=True, text=True)
    assert said.returncode != 0
    assert re.search(r"the data is a schema, without samples: serve the job", said.stderr)


SCHEMA = TableSchema(
    (Column("age", "years"), Column("ward", values=("east", "west")), Column("chol", fill=5.5)),
    Column("ill", values=("no", "yes")),
)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ward,chol,ill\neast,1,no\n", "there is no column 'age', which the job needs"),
        ("Age,ward,chol,ill\n1,east,1,no\n", "no column 'age', which the job needs; did you mean 'Age'"),
        ("age,ward,chol,ill\n1,north,1,no\n", "line 2, column 'ward' is 'north', none of the values east, west"),
        ("age,ward,chol,ill\n1,east,1,3\n", "column 'ill' has class '0', and the job's classes are no, yes"),
        ("age,ward,chol,ill\nold,east,1,no\n", "column 'age' is text, and the job expects numbers"),
        (
            "age,ward,chol,ill\n,east,1,no\n1,east,1,no\n",
            "column 'age' has missing values, and the job",
        ),
        ("age,ward,chol\n1,east,1\n", r"no column \(target\)"),
    ],
)
def test_a_file_that_means_something_else_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(BadData, match=sentence):
        from_csv(path, "ill", units={"age": "years"} if text.startswith("age") else None, schema=SCHEMA)


def test_other_units_are_refused_and_no_unit_too(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("age,ward,chol,ill\n40,east,1,no\n50,west,,yes\n")
    for units, said in (({"age": "months"}, "is in 'months'"), ({}, "states no unit")):
        with pytest.raises(BadData, match=f"column 'age' {said}, and the job expects 'years'"):
            from_csv(path, "ill", units=units, schema=SCHEMA)
    table = from_csv(path, "ill", units={"age": "years"}, schema=SCHEMA)
    assert table.x.tolist() == [[40, 1, 0, 1], [50, 0, 1, 5.5]]
    assert table.features == ("age", "ward=east", "ward=west", "chol")


def test_a_party_with_one_class_only_keeps_its_place_among_the_classes(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("chol,ill,ward,age\n1,yes,east,40\n2,yes,west,41\n")
    table = from_csv(path, "ill", units={"age": "years"}, schema=SCHEMA)
    assert table.y.tolist() == [1, 1]
    assert table.classes == 2


def test_what_a_party_says_tells_no_value_of_its_texts_and_a_saved_federation_is_put_in_order(tmp_path: Path) -> None:
    from atoll.runtimes.network.messages.envelope import Hello, read_envelope, write_envelope
    from atoll.runtimes.network.party.assess import part_of, summary

    path = tmp_path / "a.csv"
    path.write_text("chol,ill,ward,age,note\n,yes,secret-ward,40,x\n2,no,west,41,y\n")
    recipe = {"use": "csv", "path": str(path), "target": "ill", "holdout": 0.0, "clients": 1}
    held = summary(recipe)
    bytes_ = write_envelope(Hello("a", held.samples, held.sample, columns=held.columns))
    assert read_envelope(Hello, bytes_).columns == held.columns
    assert b"secret-ward" not in bytes_
    assert held.columns is not None
    assert held.columns.gaps == ("chol",)
    path.write_text("chol,ill,ward,age\n1,yes,east,40\n2,no,west,41\n")
    schema = TableSchema((*SCHEMA.features[1:], Column("age")), SCHEMA.target)
    from_csv(path, "ill").split(1).save(tmp_path / "kept")
    kept = part_of({"use": "saved", "folder": str(tmp_path / "kept")}, schema=schema)
    assert sorted(kept.train.x.tolist()) == [[0, 1, 2, 41], [1, 0, 1, 40]]


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        ({"name": "a", "values": []}, "states no values"),
        ({"name": "a\x1b[2J"}, "control characters"),
        ({"name": "a", "fill": "x"}, "no finite number"),
        ({"name": "a", "values": ["x"], "fill": "y"}, "none of them"),
        ({"name": "ill"}, "named twice"),
        ({"nam": "a"}, "nam"),
    ],
)
def test_a_schema_that_cannot_be_is_a_sentence(column: dict[str, object], sentence: str) -> None:
    said = {"features": [column], "target": {"name": "ill", "values": ["no", "yes"]}}
    with pytest.raises(BadData, match=sentence):
        TableSchema.of(said)
    assert stated(SCHEMA, clients=3).features == SCHEMA.names
