"""Data of one's own: what is read right, and every sentence that refuses bad input."""

import sys

import numpy as np
import pytest

from atoll.data import BadData, build, federate, from_arrays, from_csv, load

GOOD = "age,ward,smoker,ill\n30,a,yes,0\n40,b,no,1\n50,a,no,1\n60,b,yes,0\n"


@pytest.fixture
def write(tmp_path):
    def _write(text, name="x.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return _write


def test_a_csv_becomes_numbers_and_keys(write):
    path = write(GOOD)
    table = from_csv(path, "ill", "ward")
    assert table.features == ("age", "smoker=no", "smoker=yes")
    assert table.x.tolist() == [[30, 0, 1], [40, 1, 0], [50, 1, 0], [60, 0, 1]]
    assert table.y.tolist() == [0, 1, 1, 0]
    assert (table.kind, table.classes, table.x.dtype, table.y.dtype) == ("classes", 2, np.float32, np.int32)
    made = table.split(by="ward")
    assert made.parties == ("a", "b")
    said = {"use": "csv", "path": str(path), "target": "ill", "client": "ward", "holdout": 0.0, "by": "ward"}
    assert made.recipe == said
    assert np.array_equal(build(said).train.x, made.train.x)


def test_a_csv_from_a_job_file(write):
    path = str(write(GOOD))
    made = build({"use": "csv", "path": path, "target": "ill", "client": "ward", "holdout": 0.25})
    assert made.parties == ("a", "b")
    assert made.test.sizes.sum() == 1
    again = build(made.recipe)
    assert np.array_equal(again.train.x, made.train.x)
    rebuilt = build(from_csv(path, "ill", "ward", test=0.25).split().recipe)
    assert np.array_equal(rebuilt.train.x, made.train.x)


def test_text_targets_bom_gzip_test_file_and_scaling(write):
    import gzip

    train = write(
        gzip.compress(("\ufeff" + GOOD.replace(",0\n", ",no\n").replace(",1\n", ",yes\n")).encode()), "x.csv.gz"
    )
    test = write("age,ward,smoker,ill\n45,c,maybe,yes\n", "t.csv")
    table = from_csv(train, "ill", "ward", test=test, standardise=True)
    assert table.y.tolist() == [0, 1, 1, 0]
    assert table.test_y.tolist() == [1]
    assert table.test_x.tolist() == [[0, 0, 0]]  # the mean age, and an answer never seen
    assert abs(table.x[:, 0].std() - 1) < 1e-6
    only = from_csv(train, "ill", features=["age"])
    assert only.features == ("age",)


def test_real_targets(write):
    rows = "\n".join(f"{i},{i * 1.5}" for i in range(10))
    table = from_csv(write("a,b\n" + rows), "b")
    assert (table.kind, table.classes, table.y.dtype) == ("real", 0, np.float32)


def test_parquet_by_suffix(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "x.parquet"
    columns = {"age": [30, 40, 50], "ok": [True, False, True], "ward": ["a", "b", "a"], "ill": [0, 1, 1]}
    pq.write_table(pa.table(columns), path)
    table = load("csv", path=path, target="ill", client="ward", holdout=None)
    assert table.x.tolist() == [[30, 1], [40, 0], [50, 1]]
    assert table.split().parties == ("a", "b")
    pq.write_table(pa.table({**columns, "age": [30, None, 50]}), path)
    with pytest.raises(BadData, match=r"row 2, column 'age' is nan"):
        from_csv(path, "ill")
    path.write_bytes(b"nonsense")
    with pytest.raises(BadData, match="not a Parquet file"):
        from_csv(path, "ill")


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "x.parquet").write_bytes(b"")
    with pytest.raises(BadData, match=r"pip install 'atoll\[parquet\]'"):
        from_csv(tmp_path / "x.parquet", "ill")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "holds no samples"),
        ("age,ill\n", "holds no samples"),
        ("age,ill\n1,0\n2\n3,1\n", r"x\.csv, line 3 has 1 cells of 2, nothing for column 'ill'"),
        ("age,ill\n1,0\n2,1,5\n", "line 3 has 3 cells of 2, more cells than columns"),
        ("age,ill\n1,0\n\nx,1\n3,0\n", r"line 4, column 'age' is 'x' where the column holds numbers"),
        ("age,ill\n1,0\n,1\n3,0\n", "line 3, column 'age' is empty: fill it in or drop the row"),
        ("age,ill\n1,0\nnan,1\n", "line 3, column 'age' is nan: give a finite number"),
        ("age,ill\n1,0\ninf,1\n", "line 3, column 'age' is inf"),
        ("age,ill\n1e99,0\n2,1\n", "x has inf in row 0, column 'age'"),
        ("age,ill\n1,0\n2,nan\n", "line 3, column 'ill' is nan"),
        ("age,il\n1,0\n2,1\n", r"no column \(target\) in .*x\.csv 'ill': did you mean 'il'"),
        ("age,age,ill\n1,1,0\n", "'age' twice"),
        ("ill\n1\n0\n", "add a feature column"),
        ('age,ill\n"1,0\n2,1\n', "is not CSV"),
        ("age,ill\n1,0\n2,0\n", "all labels are 0"),
        (
            "age,ill\n1,-1\n2,1\n",
            r"'ill' of .*x\.csv has label -1.0 in line 2, which is negative: number the",
        ),
        (b"age,ill\n\xff\xfe,0\n", "not UTF-8"),
        ("n,ill\n" + "\n".join(f"name{i},{i % 2}" for i in range(51)), "column 'n' .* 51 distinct values"),
    ],
)
def test_bad_files(write, text, sentence):
    with pytest.raises(BadData, match=sentence):
        from_csv(write(text), "ill")


def test_bad_requests(write):
    path = write(GOOD)
    for arguments, sentence in [
        ({"target": "ill", "client": "wrd"}, r"no column \(client\) .* did you mean 'ward'"),
        ({"target": "ill", "features": ["agee"]}, "did you mean 'age'"),
        ({"target": "ill", "test": path.with_name("none.csv")}, "is not a file"),
        ({"target": "ill", "test": 1.5}, "below 1"),
    ]:
        with pytest.raises(BadData, match=sentence):
            from_csv(path, **arguments)
    with pytest.raises(BadData, match="line 2, column 'ward' names no client"):
        from_csv(write("age,ward,ill\n1,,0\n2,b,1\n"), "ill", "ward")
    with pytest.raises(BadData, match="'2', none of the classes x, y"):
        from_csv(write("a,t\n1,x\n2,y\n"), "t", test=write("a,t\n1,2\n", "t.csv"))
    with pytest.raises(BadData, match="is text, and numbers are expected"):
        from_csv(write("a,t\n1,x\n2,y\n"), "t", test=write("a,t\nq,x\n", "t.csv"))
    with pytest.raises(BadData, match="csv needs target: add target"):
        load("csv", path=path)
    with pytest.raises(BadData, match="cannot be read"):
        from_csv(write(b"\x1f\x8bno", "y.csv.gz"), "ill")


X = np.arange(12.0).reshape(6, 2)
Y = [0, 1, 2, 0, 1, 2]


def test_arrays():
    table = from_arrays(X, np.array(Y, float), test=(X[:2], [0.0, 2.0]), keys={"who": list("aabbcc")})
    assert (table.kind, table.classes, table.x.dtype, table.y.dtype) == ("classes", 3, np.float32, np.int32)
    assert table.test_y.tolist() == [0, 2]
    assert table.split().recipe == {"use": "arrays"}
    assert from_arrays(X, np.linspace(0, 1, 6)).kind == "real"
    assert from_arrays(X, Y, kind="real").y.dtype == np.float32
    assert from_arrays(X, Y, classes=5).classes == 5
    assert len(from_arrays(X, Y, test=0.5).test_x) == 3
    assert from_arrays(X.astype(np.uint8), Y).x.dtype == np.uint8


@pytest.mark.parametrize(
    ("x", "y", "more", "sentence"),
    [
        (X, Y[:5], {}, r"x and y have shapes \(6, 2\) and \(5,\)"),
        (X[:0], Y[:0], {}, "empty"),
        (X * np.nan, Y, {"features": ["a", "b"]}, "x has nan in row 0, column 'a'"),
        (np.where(X == 5, np.inf, X), Y, {}, "x has inf in row 2, column 1: give a finite number or drop the row"),
        (X, [0, 1, 2, 0, 1, 9], {"classes": 3}, "label 9 in row 5 where classes = 3 allows 0 to 2"),
        (X, [0, 1, 2, 0, 1, -1], {}, "label -1 in row 5, which is negative"),
        (X, [0, 1, 2, 0, 1, 0.5], {"kind": "classes"}, "is not whole"),
        (X, [1] * 6, {}, "all labels are 1: give samples of at least two classes"),
        (X, [0.5, np.nan, 1, 2, 3, 4], {}, "y has label nan in row 1"),
        (X, list("abcabc"), {}, "not numbers: number the classes"),
        (X.astype(np.int64) * 2**40, Y, {}, "beyond 32 bits"),
        (X.astype(str), Y, {}, "not numbers: encode"),
        (X, Y, {"kind": "klasses"}, "say 'classes' or 'real'"),
        (X, Y, {"keys": {"w": [1]}}, "key 'w'"),
        (X, Y, {"test": (X[:, :1], Y)}, "make them equal"),
        (X, Y, {"test": (X, [0, 1, 2, 0, 1, 3])}, "test y has label 3"),
        (X, Y, {"test": (X * np.nan, Y)}, "test x has nan"),
    ],
)
def test_bad_arrays(x, y, more, sentence):
    with pytest.raises(BadData, match=sentence):
        from_arrays(x, y, **more)


def test_federate():
    made = federate([(X[:4], Y[:4]), (X[4:], Y[4:])], names=["north", "south"], test=(X, Y))
    assert made.train.sizes.tolist() == [4, 2]
    assert made.name(1) == "south"
    assert made.train[1][1].tolist() == [1, 2]
    assert made.test.sizes.tolist() == [6]
    assert federate([(X, [-1.0, 2.0] * 3), (X, np.linspace(0, 1, 6))]).kind == "real"
    for parts, more, sentence in [
        ([], {}, "no parties"),
        ([(X, Y), (X[:0], [])], {"names": ["a", "b"]}, "party b has no samples"),
        ([(X, Y), (X, Y[:2])], {}, "x and y of party 1"),
        ([(X, Y), (X[:, :1], Y)], {}, "samples of party 1 have shape"),
        ([(X, Y), (X * np.nan, Y)], {}, "x of party 1 has nan"),
        ([(X, Y), (X, [0, 0, 0, 0, 0, -2])], {}, "y of party 1 has label -2"),
        ([(X, [1] * 6), (X, [1] * 6)], {}, "all labels are 1"),
        ([(X, Y)], {"names": ["a", "b"]}, "2 names for 1 parties"),
    ]:
        with pytest.raises(BadData, match=sentence):
            federate(parts, **more)
