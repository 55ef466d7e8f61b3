"""Models: networks as data, trained by JAX or PyTorch through one protocol."""

from atoll.models.adapters import equinox, flax, functions, module
from atoll.models.example_dp import ExampleDP
from atoll.models.model import Fit, Model
from atoll.models.optimiser import Optimiser, optimiser
from atoll.models.zoo import char_lstm, cnn, lenet, linear, logistic, mlp, softmax

__all__ = [
    "ExampleDP", "Fit", "Model", "Optimiser", "char_lstm", "cnn", "equinox", "flax", "functions", "lenet", "linear",
    "logistic", "mlp", "module", "optimiser", "softmax",
]  # fmt: skip
