"""Secure aggregation: the server learns the sum of many vectors and none of them.

Bonawitz et al. (CCS 2017) with five messages, against a server that lies and fewer than a third of the parties on its
side, provided that the parties know each other's identity keys from elsewhere. Not promised: that the sum is right,
that it tells nothing by itself (add noise for that), or that nobody sees who took part.
"""

from atoll.crypto.keys import Identity
from atoll.crypto.secagg.client import Client
from atoll.crypto.secagg.messages import Plan, decode, encode, message_sizes
from atoll.crypto.secagg.policy import STEPS, Abort, Party, Policy, Spent, SpentHere
from atoll.crypto.secagg.rehearse import Facts, Rehearsed, answer, bytes_sent, rehearse
from atoll.crypto.secagg.server import Server, Total

__all__ = [
    "STEPS", "Abort", "Client", "Facts", "Identity", "Party", "Plan", "Policy", "Rehearsed", "Server", "Spent",
    "SpentHere", "Total", "answer", "bytes_sent", "decode", "encode", "message_sizes", "rehearse",
]  # fmt: skip
