"""The models of the papers, by name. Each is a spec: a frozen record that builds a network for the data's shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from atoll.models.layers import Conv, Dense, Embed, Flatten, Image, Layer, Lstm, Pool, Relu, Shape
from atoll.models.model import Model
from atoll.models.net import Net

Backend = Literal["jax", "torch"]


def _known(shape: Shape | None, outputs: int | None) -> tuple[Shape, int]:
    if shape is None or outputs is None:
        raise ValueError("the model does not know its data yet: call model.bind(shape, outputs), or give it to a Job")
    return shape, outputs


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
            raise ValueError(f"logistic tells two classes apart, the data has {outputs}: use softmax")
        return Net((Flatten(), Dense(1, zero=True)), shape, "logistic")


@dataclass(frozen=True)
class Mlp:
    """Dense layers with ReLU between; (200, 200) on MNIST is McMahan's 2NN, 199,210 parameters."""

    hidden: tuple[int, ...] = (200, 200)
    loss: Literal["cross_entropy", "squared"] = "cross_entropy"

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

    def build(self, shape: Shape | None, outputs: int | None) -> Net:
        shape, outputs = _known(shape, outputs)
        lstm = Lstm(self.units, self.peephole)
        return Net((Embed(outputs, self.embedding), lstm, lstm, Dense(outputs)), shape, ignore=outputs - 2)


SPECS: dict[str, type[Any]] = {
    "linear": Linear,
    "softmax": Softmax,
    "logistic": Logistic,
    "mlp": Mlp,
    "cnn": Cnn,
    "lenet": LeNet,
    "char_lstm": CharLstm,
}


def linear(*, backend: Backend = "jax", dtype: Literal["float32", "float64"] = "float32") -> Model:
    """Linear regression with an intercept."""
    return Model(Linear(), backend, dtype)


def softmax(*, backend: Backend = "jax", dtype: Literal["float32", "float64"] = "float32") -> Model:
    """Softmax regression from zero."""
    return Model(Softmax(), backend, dtype)


def logistic(*, backend: Backend = "jax", dtype: Literal["float32", "float64"] = "float32") -> Model:
    """Logistic regression from zero, one score for two classes."""
    return Model(Logistic(), backend, dtype)


def mlp(
    hidden: tuple[int, ...] = (200, 200),
    loss: Literal["cross_entropy", "squared"] = "cross_entropy",
    *,
    backend: Backend = "jax",
    dtype: Literal["float32", "float64"] = "float32",
) -> Model:
    """Dense layers with ReLU between; on MNIST this is McMahan's 2NN."""
    return Model(Mlp(tuple(hidden), loss), backend, dtype)


def cnn(channels: tuple[int, int] = (32, 64), units: int = 512, *, backend: Backend = "jax") -> Model:
    """McMahan's convolutional network for MNIST."""
    return Model(Cnn((channels[0], channels[1]), units), backend)


def lenet(*, backend: Backend = "jax") -> Model:
    """The small convolutional network of the HierFAVG experiments."""
    return Model(LeNet(), backend)


def char_lstm(units: int = 256, embedding: int = 8, peephole: bool = True, *, backend: Backend = "jax") -> Model:
    """McMahan's next-character LSTM for Shakespeare."""
    return Model(CharLstm(units, embedding, peephole), backend)
