"""Methods: what parties compute on data, and what is done with the combined tree. None mentions a framework."""

from atoll.methods.fedavg import FedAvg, FedProx, fedadagrad, fedadam, fedavgm, fedyogi
from atoll.methods.fedsgd import FedSGD
from atoll.methods.schedule import Cosine, Exponential, Steps

__all__ = [
    "Cosine", "Exponential", "FedAvg", "FedProx", "FedSGD", "Steps", "fedadagrad", "fedadam", "fedavgm", "fedyogi",
]  # fmt: skip
