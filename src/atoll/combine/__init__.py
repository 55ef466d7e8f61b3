"""Combine: how a cohort's vectors become one. A combine knows vectors and the order of talk, never data."""

from atoll.combine.each import Each, Sum
from atoll.combine.rules import Mean, Median, TrimmedMean

__all__ = ["Each", "Mean", "Median", "Sum", "TrimmedMean"]
