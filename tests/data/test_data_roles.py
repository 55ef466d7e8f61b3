"""What a role holds: rows sorted by id, 64-bit numbers, refusals with a remedy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from atoll.data import BadData
from atoll.data.roles import columns, ids_digest, nothing, read_role


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_rows_are_sorted_by_id_and_numbers_keep_64_bits(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "x,idx,y\n0.1,10,1\n0.123456789012345678,9,0\n")
    data = read_role({"path": path, "id": "idx", "label": "y"})
    assert data.x.dtype == data.y.dtype == np.float64
    assert data.x[:, 0].tolist() == [0.123456789012345678, 0.1]
    assert data.y.tolist() == [0.0, 1.0]
    assert data.ids.tolist() == [9, 10], "whole numbers are sorted as such"
    assert data.names == ("x",)
    assert read_role({"path": path, "id": "idx", "features": ["y", "x"]}).x.tolist()[1] == [1.0, 0.1]


def test_ids_that_are_no_whole_numbers_are_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "idx,x\n010,1\n9,2\n")
    assert read_role({"path": path, "id": "idx"}).ids.tolist() == ["010", "9"]


def test_a_role_may_hold_labels_only_or_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "idx,y\n1,1\n2,2\n")
    data = read_role({"path": path, "id": "idx", "label": "y"})
    assert data.x.shape == (2, 0)
    assert data.y.tolist() == [1.0, 2.0]
    assert len(read_role({})) == len(nothing()) == 0


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"id": "idx"}, "has no path"),
        ({"path": "a.csv"}, "has no id"),
        ({"path": "a.csv", "id": "idx", "lable": "y"}, "did you mean 'label'"),
        ({"path": "a.csv", "id": 3}, "a text is needed"),
        ({"path": "a.csv", "id": "idx", "features": "x"}, "a list of columns is needed"),
        ({"path": "a.csv", "id": "id"}, "there is no id column in a.csv 'id'"),
        ({"path": "a.csv", "id": "idx", "features": ["idx"]}, "is the id: leave it out"),
        ({"path": "a.csv", "id": "idx", "label": "x", "features": ["x"]}, "is the label: leave it out"),
        ({"path": "a.csv", "id": "idx"}, "column 'city' of a.csv is text"),
        ({"path": "a.csv", "id": "city", "features": ["x"]}, "has id 'ulm' twice"),
        ({"path": "b.csv", "id": "idx"}, "b.csv is not a file"),
        ({"path": "a.csv", "id": "idx", "features": ["x", "x"]}, "column 'x' is twice in features"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    recipe: dict[str, object], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.csv", "idx,x,city\n1,1,ulm\n2,2,ulm\n")
    with pytest.raises(BadData) as refusal:
        read_role(recipe)
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"x": [1.0, 2.0]}, "give (n, d) and (n,)"),
        ({"x": [[1.0]], "y": [1.0, 2.0]}, "give (n, d) and (n,)"),
        ({"x": [[np.nan]]}, "not finite"),
        ({"x": [[1.0]], "ids": [1, 2]}, "2 ids for 1 rows"),
        ({"x": [[1.0], [2.0]], "ids": ["a", ""]}, "an empty id"),
        ({"x": [[1.0, 2.0]], "names": ["a", "a"]}, "a name of its own"),
        ({"x": [[1.0], [2.0]], "ids": [1, None]}, "an empty id"),
        ({"x": [["one"]]}, "are numbers"),
        ({"x": [[1.0]], "ids": 3}, "its ids a list"),
    ],
)
def test_arrays_that_cannot_be_are_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(BadData) as refusal:
        columns(**given)  # type: ignore[arg-type]
    assert words in str(refusal.value)


def test_the_same_ids_have_the_same_hash_in_one_job_only() -> None:
    a, b = columns(np.zeros((3, 1)), ids=[3, 1, 2]), columns(np.ones((3, 2)), ids=["1", "2", "3"])
    assert a.summary(b"job").ids == b.summary(b"job").ids != a.summary(b"another").ids
    assert columns(np.zeros((3, 1)), ids=[1, 2, 4]).summary(b"job").ids != a.summary(b"job").ids
    assert ids_digest(np.array(["ab", "c"]), b"") != ids_digest(np.array(["a", "bc"]), b""), "where ids end counts"
    assert columns(np.zeros((3, 1))).summary(b"job").ids == b""


FAR = 2**53  # beyond it not every whole number is a 64-bit real


def test_ids_beyond_53_bits_stay_apart(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    ids = [FAR, FAR + 1, FAR + 2, 2**63 - 1]
    pq.write_table(pa.table({"idx": pa.array(ids, pa.int64()), "x": [1.0, 2.0, 3.0, 4.0]}), tmp_path / "a.parquet")
    path = write(tmp_path / "a.csv", "idx,x\n" + "".join(f"{one},{k + 1}\n" for k, one in enumerate(ids)))
    parquet = read_role({"path": str(tmp_path / "a.parquet"), "id": "idx"})
    text, arrays = read_role({"path": path, "id": "idx"}), columns([[1], [2], [3], [4]], ids=ids)
    hashes = {data.summary(b"job").ids for data in (parquet, text, arrays)}
    assert len(hashes) == 1, "the same ids, wherever they are from"
    assert [int(one) for one in parquet.ids] == ids
    assert parquet.x.tolist() == text.x.tolist() == arrays.x.tolist()
    assert [str(one) for one in columns([[1], [2]], ids=[-1, 2**63]).ids] == ["-1", str(2**63)]


def test_a_row_of_a_parquet_file_without_an_id_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"idx": pa.array([1, None]), "x": [1.0, 2.0]}), tmp_path / "a.parquet")
    with pytest.raises(BadData, match="has an empty id"):
        read_role({"path": str(tmp_path / "a.parquet"), "id": "idx"})
