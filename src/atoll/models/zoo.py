"""The models of the papers, by name. Each is a spec: a frozen record that builds a network for the data's shape."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from atoll.core.errors import Mismatch
from atoll.core.given import number
from atoll.models.layers import Conv, Dense, Embed, Flatten, Image, Layer, Lstm, Pool, Relu, Shape
from atoll.models.model import Model, Spec
from atoll.models.net import Net

Backend = Literal["jax", "torch"]


def _known(shape: Shape | None, outputs: int | None) -> tuple[Shape, int]:
    if shape is None or outputs is None:
        raise Mismatch("the model does not know its data yet: call model.bind(shape, outputs), or give it to a Job")
    return shape, outputs


def _counts(name: str, **fields: object) -> None:
    """Refuse sizes of layers that are no whole numbers from 1."""
    for field, value in fields.items():
        for k, one in enumerate(value) if isinstance(value, tuple) else ((None, value),):
            number(f"{name}: {field}" + ("" if k is None else f"[{k}]"), one)


def _listed(name: str, field: str, given: object) -> tuple[int, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise Mismatch(f"{name}: {field} = {given!r}: a list of whole numbers, as in {name}({field}=(64, 32))")
    return tuple(given)


@dataclass(frozen=True)
class Linear:
    """Linear regression with an intercept, squared loss."""

    def build(self, shape: Shape | None, outputs: int | None) -> Net:
        shape, outputs = _known(shape, outputs)
        return Net((Flatten(), Dense(outputs, zero=True)), shape, "squared")


@dataclass(frozen=True)
class Softmax:
    """Softmax regression from zero: the convex classifier."""

    def build(self, shape: Shape | None, outputs: int | None) -> Net:
        shape, outputs = _known(shape, outputs)
        return Net((Flatten(), Dense(outputs, zero=True)), shape)


@dataclass(frozen=True)
class Logistic:
    """Logistic regression from zero: one score for two classes."""

    def build(self, shape: Shape | None, outputs: int | None) -> Net:
        shape, outputs = _known(shape, outputs)
        if outputs != 2:
            raise Mismatch(f"logistic tells two classes apart, the data has {outputs}: use softmax")
        return Net((Flatten(), Dense(1, zero=True)), shape, "logistic")


@dataclass(frozen=True)
class Mlp:
    """Dense layers with ReLU between; (200, 200) on MNIST is McMahan's 2NN, 199,210 parameters."""

    hidden: tuple[int, ...] = (200, 200)
    loss: Literal["cross_entropy", "squared"] = "cross_entropy"

    def __post_init__(self) -> None:
        _counts("mlp", hidden=self.hidden)

    def build(self, shape: Shape | None, outputs: int | None) -> Net:
        shape, outputs = _known(shape, outputs)
        layers: list[Layer] = [Flatten()]
        for units in self.hidden:
            layers += [Dense(units), Relu()]
        return Net((*layers, Dense(outputs)), shape, self.loss)


@dataclass(frozen=True)
class Cnn:
    """McMahan's network for MNIST: two 5×5 convolutions (32, 64) with pooling, 512 units; 1,663,370 parameters."""

    channels: tuple[int, int] = (32, 64)
    units: int = 512

    def __post_init__(self) -> None:
        _counts("cnn", channels=self.channels, units=self.units)

    def build(self, shape: Shape | None, outputs: int | None) -> Net:
        shape, outputs = _known(shape, outputs)
        a, b = self.channels
        # Pooling before ReLU gives the same numbers for a quarter of the work.
        body = (Image(), Conv(a), Pool(), Relu(), Conv(b), Pool(), Relu(), Flatten())
        return Net((*body, Dense(self.units), Relu(), Dense(outputs)), shape)


@dataclass(frozen=True)
class LeNet:
    """The small network of the HierFAVG experiments: 10 and 20 channels, 50 units; 21,840 parameters on MNIST."""

    def build(self, shape: Shape | None, outputs: int | None) -> Net:
        shape, outputs = _known(shape, outputs)
        body = (Image(), Conv(10, padding="valid"), Pool(), Relu(), Conv(20, padding="valid"), Pool(), Relu())
        return Net((*body, Flatten(), Dense(50), Relu(), Dense(outputs)), shape)


@dataclass(frozen=True)
class CharLstm:
    """Next character: embedding 8, two LSTM layers of 256; with peepholes and 258 symbols McMahan's 866,578 parameters.

    Label `outputs − 2` (256: padding) does not count. Without peepholes it is the LSTM that frameworks ship.
    """

    units: int = 256
    embedding: int = 8
    peephole: bool = True

    def __post_init__(self) -> None:
        _counts("char_lstm", units=self.units, embedding=self.embedding)

    def build(self, shape: Shape | None, outputs: int | None) -> Net:
        shape, outputs = _known(shape, outputs)
        lstm = Lstm(self.units, self.peephole)
        return Net((Embed(outputs, self.embedding), lstm, lstm, Dense(outputs)), shape, ignore=outputs - 2)


SPECS: dict[str, type[Spec]] = {
    "linear": Linear,
    "softmax": Softmax,
    "logistic": Logistic,
    "mlp": Mlp,
    "cnn": Cnn,
    "lenet": LeNet,
    "char_lstm": CharLstm,
}


def linear(*, backend: Backend = "jax", dtype: Literal["float32", "float64"] = "float32") -> Model:
    """Linear regression with an intercept and squared loss; it starts from zero.

    Args:
        backend: "jax" (the default) or "torch" (`pip install 'atoll[torch]'`).
        dtype: of the parameters, "float32" (the default) or "float64".

    Example:
        >>> import atoll
        >>> atoll.models.linear().bind((8,), 1).size
        9
    """
    return Model(Linear(), backend, dtype)


def softmax(*, backend: Backend = "jax", dtype: Literal["float32", "float64"] = "float32") -> Model:
    """Softmax regression; it starts from zero.

    Args:
        backend: "jax" (the default) or "torch" (`pip install 'atoll[torch]'`).
        dtype: of the parameters, "float32" (the default) or "float64".

    Example:
        >>> import atoll
        >>> atoll.models.softmax().bind((784,), 10).size
        7850
    """
    return Model(Softmax(), backend, dtype)


def logistic(*, backend: Backend = "jax", dtype: Literal["float32", "float64"] = "float32") -> Model:
    """Logistic regression, one score for two classes; it starts from zero.

    Args:
        backend: "jax" (the default) or "torch" (`pip install 'atoll[torch]'`).
        dtype: of the parameters, "float32" (the default) or "float64".

    Example:
        >>> import atoll
        >>> atoll.models.logistic().bind((123,), 2).size
        124
    """
    return Model(Logistic(), backend, dtype)


def mlp(
    hidden: tuple[int, ...] = (200, 200),
    loss: Literal["cross_entropy", "squared"] = "cross_entropy",
    *,
    backend: Backend = "jax",
    dtype: Literal["float32", "float64"] = "float32",
) -> Model:
    """Dense layers with ReLU; with its defaults, on MNIST, the 2NN of McMahan et al. 2017.

    Args:
        hidden: units of each hidden layer. Default (200, 200).
        loss: "cross_entropy" (the default) for classes, or "squared" for real targets.
        backend: "jax" (the default) or "torch" (`pip install 'atoll[torch]'`).
        dtype: of the parameters, "float32" (the default) or "float64".

    Example:
        >>> import atoll
        >>> atoll.models.mlp(hidden=(64,)).bind((64,), 10).size
        4810
    """
    return Model(Mlp(_listed("mlp", "hidden", hidden), loss), backend, dtype)


def cnn(channels: tuple[int, int] = (32, 64), units: int = 512, *, backend: Backend = "jax") -> Model:
    """The convolutional network of McMahan et al. 2017: two 5×5 convolutions with pooling, and one dense layer.

    Args:
        channels: channels of the two convolutions. Default (32, 64).
        units: units of the dense layer, 1 or more. Default 512.
        backend: "jax" (the default) or "torch" (`pip install 'atoll[torch]'`).

    Example:
        >>> import atoll
        >>> atoll.models.cnn().bind((784,), 10).size
        1663370
    """
    both = _listed("cnn", "channels", channels)
    if len(both) != 2:
        raise Mismatch(f"cnn: channels = {channels!r}: two numbers, of its two convolutions, as in (32, 64)")
    return Model(Cnn((both[0], both[1]), units), backend)


def lenet(*, backend: Backend = "jax") -> Model:
    """A small convolutional network: 10 and 20 channels, 50 units, as in the experiments of HierFAVG.

    Args:
        backend: "jax" (the default) or "torch" (`pip install 'atoll[torch]'`).

    Example:
        >>> import atoll
        >>> atoll.models.lenet().bind((784,), 10).size
        21840
    """
    return Model(LeNet(), backend)


def char_lstm(units: int = 256, embedding: int = 8, peephole: bool = True, *, backend: Backend = "jax") -> Model:
    """The next-character LSTM of McMahan et al. 2017: an embedding and two LSTM layers.

    The second last label of the data is padding and does not count.

    Args:
        units: units of each LSTM layer, 1 or more. Default 256.
        embedding: size of the embedding of a character, 1 or more. Default 8.
        peephole: whether the cells have peephole connections, as in the paper. Default true.
        backend: "jax" (the default) or "torch" (`pip install 'atoll[torch]'`).

    Example:
        >>> import atoll
        >>> atoll.models.char_lstm().bind((80,), 258).size
        866578
    """
    return Model(CharLstm(units, embedding, peephole), backend)
