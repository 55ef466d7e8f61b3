"""Stages: what happens to a vector between two models. No stage knows a party or a model."""

from atoll.stages.clip import Clip
from atoll.stages.weigh import Average, Weigh

__all__ = ["Average", "Clip", "Weigh"]
