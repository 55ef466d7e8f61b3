"""Combine: how a cohort's vectors become one. A combine knows vectors and its message protocol, never data."""

from atoll.combine.buffered import Buffered
from atoll.combine.each import Each, Sum
from atoll.combine.encrypted import EncryptedSum
from atoll.combine.light import LightSum
from atoll.combine.rules import Mean, Median, TrimmedMean
from atoll.combine.secure import SecureSum

__all__ = ["Buffered", "Each", "EncryptedSum", "LightSum", "Mean", "Median", "SecureSum", "Sum", "TrimmedMean"]
