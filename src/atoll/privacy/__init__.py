"""Privacy: what a run spends, how much noise it needs, exact noise, and tests of the promise. No part knows a model."""

from atoll.privacy.account import Account, compose
from atoll.privacy.audit import PrivacyAudit, audit, audit_scores, floating_point_attack, lower_bound
from atoll.privacy.calibrate import delta_for, multiplier_for
from atoll.privacy.discrete import AddressedBits, Bits, SecureBits, discrete_gaussian
from atoll.privacy.events import Spend
from atoll.privacy.tree import increments, prefix

__all__ = [
    "Account", "AddressedBits", "Bits", "PrivacyAudit", "SecureBits", "Spend", "audit", "audit_scores", "compose",
    "delta_for", "discrete_gaussian", "floating_point_attack", "increments", "lower_bound", "multiplier_for", "prefix",
]  # fmt: skip
