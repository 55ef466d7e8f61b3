"""Secure aggregation: the server learns the sum of many vectors and none of them.

Bonawitz et al. (CCS 2017) with five messages, against a server that lies and fewer than a third of the parties on its
side, provided that the parties know each other's identity keys from elsewhere. Not promised: that the sum is right,
that it tells nothing by itself (add noise for that), or that nobody sees who took part.
"""

from atoll.crypto.keys import Abort, Identity
from atoll.crypto.records import encode
from atoll.crypto.secagg.client import SecureClient
from atoll.crypto.secagg.messages import SecurePlan, bytes_sent, decode, expected_bytes, message_sizes
from atoll.crypto.secagg.policy import STEPS, Participant, SecurePolicy, Spent, SpentHere, SpentRecord
from atoll.crypto.secagg.server import SecureServer

__all__ = [
    "STEPS", "Abort", "Identity", "Participant", "SecureClient", "SecurePlan", "SecurePolicy", "SecureServer", "Spent",
    "SpentHere", "SpentRecord", "bytes_sent", "decode", "encode", "expected_bytes", "message_sizes",
]  # fmt: skip
