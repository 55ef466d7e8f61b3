"""The MNIST family, read from the published IDX files; images are flat rows of floats from 0 to 1."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from atoll.core.keys import generator
from atoll.core.tree import Array
from atoll.data.errors import BadData
from atoll.data.files import File, read
from atoll.data.table import Table

SHUFFLE = 20_260_101  # the held-out images never depend on a job's seed
_QMNIST = "https://raw.githubusercontent.com/facebookresearch/qmnist/master/"
WRITERS = File(
    "qmnist_writer_ids/qmnist-train-labels-idx2-int.gz",
    _QMNIST + "qmnist-train-labels-idx2-int.gz",
    "2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f",
)
_NAMES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


def _files(folder: str, url: str, sums: tuple[str, ...]) -> tuple[File, ...]:
    names = [f"{name}-ubyte.gz" for name in _NAMES]
    return tuple(File(f"{folder}/{n}", url + n, sha) for n, sha in zip(names, sums, strict=True))


MNIST = _files(
    "mnist",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
)
FASHION = _files(
    "fashion_mnist",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
)


def mnist(*, normalise: bool = False) -> Table:
    """Handwritten digits, 28×28, 60,000 + 10,000."""
    return _images(MNIST, normalise)


def fashion_mnist(*, normalise: bool = False) -> Table:
    """Pictures of clothes, 28×28, 60,000 + 10,000: as MNIST, but harder."""
    return _images(FASHION, normalise)


def mnist_t10k(*, normalise: bool = False) -> Table:
    """The 10,000 MNIST test images alone, 8,000 to train on: small and quick to fetch."""
    x, y = _pixels(MNIST[2]), _digits(MNIST[3])
    # The file is in order of writers: unshuffled, a shard of one digit would be one person's hand.
    order = generator(SHUFFLE, "mnist_t10k").permutation(len(y))
    table = Table(x[order], y[order], classes=10).holdout(0.2, SHUFFLE)
    return _normalised(table) if normalise else table


def mnist_writers(*, normalise: bool = False) -> Table:
    """MNIST with the writer of each image as key: 539 people of 19 to 131 images."""
    writers = idx(read(WRITERS), WRITERS.path)
    return replace(_images(MNIST, normalise), keys={"writer": writers[:, 2].astype(np.int32)})


def idx(content: bytes, source: str) -> Array:
    """Decode an IDX file: two zero bytes, a type, the number of axes, their sizes, then the values, big-endian."""
    types = {0x08: ">u1", 0x0C: ">i4"}
    axes = content[3] if len(content) > 3 else 0
    start = 4 + 4 * axes
    if len(content) < start or content[:2] != b"\0\0" or content[2] not in types:
        raise BadData(f"{source} is not an IDX file: put the published one there")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", axes, 4))
    kind = np.dtype(types[content[2]])
    if len(content) != start + math.prod(shape) * kind.itemsize:
        raise BadData(f"{source} is cut short: put the whole file there")
    return np.frombuffer(content, kind, offset=start).reshape(shape)


def _images(files: tuple[File, ...], normalise: bool) -> Table:
    train, labels, test, test_labels = files
    table = Table(_pixels(train), _digits(labels), _pixels(test), _digits(test_labels), classes=10)
    return _normalised(table) if normalise else table


def _pixels(file: File) -> Array:
    images = idx(read(file), file.path)
    return np.multiply(images.reshape(len(images), -1), np.float32(1 / 255), dtype=np.float32)


def _digits(file: File) -> Array:
    return idx(read(file), file.path).astype(np.int32)


def _normalised(table: Table) -> Table:
    mean, deviation = table.x.mean(dtype=np.float64), table.x.std(dtype=np.float64)

    def scale(x: Array) -> Array:
        return (x - np.float32(mean)) / np.float32(deviation)

    return replace(table, x=scale(table.x), test_x=None if table.test_x is None else scale(table.test_x))
