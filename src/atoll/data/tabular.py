"""The small tables: embedded in scikit-learn, or read from the files of UCI, StatLib and LIBSVM."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from atoll.core.tree import Array
from atoll.data.arrays import scaled
from atoll.data.columns import Columns, parse_csv
from atoll.data.encode import encode, learn_features
from atoll.data.errors import BadData
from atoll.data.federated import Kind
from atoll.data.files import File, read
from atoll.data.schema import Column, TableSchema
from atoll.data.table import Table

if TYPE_CHECKING:
    from sklearn.utils import Bunch

HELD = 20_260_101  # seeds every hold-out here, so that a test set never depends on a job's seed
_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/"
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
A9A = File("a9a/a9a.gz", _LIBSVM + "a9a", "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906")
A9A_TEST = File("a9a/a9a.t.gz", _LIBSVM + "a9a.t", "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9")
ADULT = File(
    "adult/adult.data.gz",
    _UCI + "adult/adult.data",
    "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
)
ADULT_TEST = File(
    "adult/adult.test.gz",
    _UCI + "adult/adult.test",
    "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
)
ADULT_HEADER = (
    "age,workclass,fnlwgt,education,education_num,marital_status,occupation,relationship,race,sex,capital_gain,"
    "capital_loss,hours_per_week,native_country,income"
)
ADULT_KEYS = ("workclass", "education", "occupation", "native_country")
CREDIT = File(
    "uci_credit_default/UCI_Credit_Card.csv.gz",
    home="https://archive.ics.uci.edu/dataset/350/default+of+credit+card+clients, the Kaggle CSV form",
)
HOUSING = File(  # as scikit-learn has it
    "california_housing/cal_housing.data.gz",
    "https://ndownloader.figshare.com/files/5976036",
    "aaa5c9a6afe2225cc2aed2723682ae403280c4a3695a2ddda4ffb5d8215ea681",
    member="CaliforniaHousing/cal_housing.data",
)
HOUSING_HEADER = "longitude,latitude,housing_median_age,total_rooms,total_bedrooms,population,households,median_income"
HEART_HEADER = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal"
HOSPITALS = {
    "cleveland": "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
    "hungarian": "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
    "switzerland": "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
    "va": "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
}


def digits(*, holdout: float = 0.2) -> Table:
    """Handwritten digits, 8×8, 1,797: in the package, no download."""
    # The file is read where scikit-learn keeps it: importing scikit-learn would take longer than the whole first round.
    package = find_spec("sklearn")
    assert package
    assert package.submodule_search_locations
    path = Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    rows = np.loadtxt(path, np.float32, delimiter=",")
    x, y = rows[:, :-1] / np.float32(16), rows[:, -1].astype(np.int32)
    return Table(x, y, classes=10).holdout(holdout, HELD)


def breast_cancer(*, holdout: float = 0.2) -> Table:
    """Benign or malignant, 569 × 30, standardised: in the package, no download."""
    from sklearn.datasets import load_breast_cancer

    return _embedded(load_breast_cancer, "classes").holdout(holdout, HELD).standardised()


def wine(*, holdout: float = 0.2) -> Table:
    """Three cultivars of wine, 178 × 13, standardised: in the package, no download."""
    from sklearn.datasets import load_wine

    return _embedded(load_wine, "classes").holdout(holdout, HELD).standardised()


def diabetes(*, holdout: float = 0.2) -> Table:
    """Progression of diabetes, a real target, 442 × 10, standardised: in the package, no download."""
    from sklearn.datasets import load_diabetes

    return _embedded(load_diabetes, "real").holdout(holdout, HELD).standardised(target=True)


def a9a() -> Table:
    """Adult income as 123 binary features, 32,561 + 16,281 (LIBSVM)."""
    x, y = _libsvm(A9A, 123)
    test_x, test_y = _libsvm(A9A_TEST, 123)
    return Table(x, y, test_x, test_y, classes=2)


def adult() -> Table:
    """Census income over 50,000 a year from raw columns, 32,561 + 16,281; keys: occupation, native_country and more."""
    columns, test = _adult(ADULT), _adult(ADULT_TEST)
    encoding = _learnt(columns, ADULT_HEADER.split(",")[:-1], "income")
    table = Table(
        encode(encoding, columns),
        _rich(columns),
        encode(encoding, test, strict=False),
        _rich(test),
        classes=2,
        features=encoding.names,
        keys={name: columns.text(name) for name in ADULT_KEYS},
        test_keys={name: test.text(name) for name in ADULT_KEYS},
    )
    return scaled(table, encoding.numeric)


def credit_default(*, holdout: float = 0.2) -> Table:
    """Default of credit-card clients in Taiwan, 30,000 × 23, 22 % positive, standardised."""
    columns = parse_csv(io.StringIO(read(CREDIT).decode()), CREDIT.path)
    names = [name for name in columns.values if name not in ("ID", "default.payment.next.month")]
    x = encode(_learnt(columns, names, "default.payment.next.month"), columns)
    y = np.array(columns.pick("default.payment.next.month")).astype(np.int32)
    return Table(x, y, classes=2, features=tuple(names)).holdout(holdout, HELD).standardised()


def heart_disease(*, holdout: float = 0.2) -> Table:
    """Heart disease in four hospitals, 920 × 13, keyed by hospital, standardised; missing values are medians."""
    tables = {h: _plain(_heart(h, sha), 14) for h, sha in HOSPITALS.items()}
    rows, y = np.concatenate(list(tables.values())), np.concatenate([t[:, -1] for t in tables.values()])
    hospital = np.repeat(list(tables), [len(t) for t in tables.values()])
    whole = Table(rows[:, :-1], (y > 0).astype(np.int32), classes=2, features=tuple(HEART_HEADER.split(",")))
    table = replace(whole, keys={"hospital": hospital}).holdout(holdout, HELD)
    median = np.nanmedian(table.x, axis=0)
    test_x = None if table.test_x is None else np.where(np.isnan(table.test_x), median, table.test_x)
    return replace(table, x=np.where(np.isnan(table.x), median, table.x), test_x=test_x).standardised()


def california_housing(*, holdout: float = 0.2) -> Table:
    """House values in California, a real target, 20,640 × 8, standardised."""
    rows = _plain(HOUSING, 9)
    table = Table(rows[:, :-1], rows[:, -1], kind="real", features=tuple(HOUSING_HEADER.split(",")))
    return table.holdout(holdout, HELD).standardised(target=True)


def _embedded(loader: Callable[[], Bunch], kind: Kind) -> Table:
    found = loader()
    y = found.target.astype(np.float32 if kind == "real" else np.int32)
    classes = 0 if kind == "real" else int(y.max()) + 1
    return Table(found.data.astype(np.float32), y, kind=kind, classes=classes, features=tuple(found.feature_names))


def _plain(file: File, width: int) -> Array:
    """Read comma-separated numbers without a header; '?' is missing."""
    lines = read(file).decode().split()
    rows = [[np.nan if cell == "?" else float(cell) for cell in line.split(",")] for line in lines]
    if not rows or any(len(row) != width for row in rows):
        raise BadData(f"{file.path} does not have {width} cells a line: put the published file there")
    return np.array(rows)


def _heart(hospital: str, sha256: str) -> File:
    name = f"processed.{hospital}.data"
    return File(f"heart_disease/{name}", f"{_UCI}heart-disease/{name}", sha256)


def _learnt(columns: Columns, names: Sequence[str], target: str) -> TableSchema:
    return TableSchema(learn_features(columns, names, units={}, fill={}), Column(target))


def _libsvm(file: File, width: int) -> tuple[Array, Array]:
    """Read 'label index:value …' lines; labels −1 and +1 become 0 and 1."""
    lines = [line.split() for line in read(file).decode().splitlines()]
    x = np.zeros((len(lines), width), np.float32)
    for row, cells in zip(x, lines, strict=True):
        for cell in cells[1:]:
            place, value = cell.split(":")
            row[int(place) - 1] = float(value)
    return x, np.array([float(cells[0]) > 0 for cells in lines], np.int32)


def _adult(file: File) -> Columns:
    # The test file opens with a remark, ends its labels with a dot, and both end with an empty line.
    lines = [line for line in read(file).decode().splitlines() if line and not line.startswith("|")]
    return parse_csv(io.StringIO("\n".join([ADULT_HEADER, *lines])), file.path)


def _rich(columns: Columns) -> Array:
    return np.char.startswith(columns.text("income"), ">50K").astype(np.int32)
