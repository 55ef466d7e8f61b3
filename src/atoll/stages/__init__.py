"""Stages: what happens to a vector between two models. No stage knows a party or a model."""

from atoll.stages.clip import Clip
from atoll.stages.loss import TrainLoss
from atoll.stages.low_rank import LowRank
from atoll.stages.noise import Gaussian, TreeNoise
from atoll.stages.quantise import Quantise, Sign
from atoll.stages.ring import Ring
from atoll.stages.rotate import Rotate
from atoll.stages.sparsify import RandomK, TopK
from atoll.stages.weigh import Average, Weigh

__all__ = [
    "Average", "Clip", "Gaussian", "LowRank", "Quantise", "RandomK", "Ring", "Rotate", "Sign", "TopK", "TrainLoss",
    "TreeNoise", "Weigh",
]  # fmt: skip
