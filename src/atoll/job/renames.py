"""Words of release 0.1 that only files have, and what they are called now. What is done with them is in `migrate`."""

from __future__ import annotations

from atoll.core.renames import FIELDS
from atoll.data.errors import RENAMED

KEYS = FIELDS["job"]
DATA = RENAMED
METRICS = {"own.": "local."}
POLICY = {
    "least_cohort": "min_cohort", "least_noise": "min_noise", "most_length": "max_norm",
    "most_epsilon_job": "max_epsilon_job", "most_epsilon_month": "max_epsilon_month",
    "most_bytes": "max_bytes", "most_rounds": "max_rounds", "most_parameters": "max_parameters",
}  # fmt: skip
# Keys by which a policy is known; one that only says where the data is has none of them.
POLICY_KEYS = {
    *POLICY, *POLICY.values(),
    "servers", "methods", "models", "allow_plain", "require", "allow_metrics", "roster", "hours", "parts", "max_memory",
}  # fmt: skip
# By part: a field that a file may leave out, and what leaving it out means now.
_ADAM = "without it the steps are not corrected for bias; bias_correction = true gives those of release 0.1"
DEFAULTS = {
    "fedadam": ("bias_correction", _ADAM),
    "fedyogi": ("bias_correction", _ADAM),
    "light_sum": ("privacy", "it is 0.3 now and was 0.5, with which a target above 0.75 is needed"),
}
