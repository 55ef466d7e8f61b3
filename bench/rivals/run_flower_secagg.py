"""CPU seconds of one SecAgg+ client of Flower: one measurement, as a JSON line, for each line on standard input.

The client's own four functions are called with real messages of all other clients, every client a neighbour of every
other, with the workflow's defaults. What carries messages (records, serialisation, gRPC) is not on the clock.
"""

import argparse
import json
import logging
import sys
from time import process_time

import flwr
import numpy as np
from flwr.client.mod.secure_aggregation.secaggplus_mod import (
    SecAggPlusState,
    _collect_masked_vectors,
    _setup,
    _share_keys,
    _unmask,
)
from flwr.common import ndarrays_to_parameters
from flwr.common.secure_aggregation.crypto.symmetric_encryption import encrypt, generate_shared_key
from flwr.common.secure_aggregation.secaggplus_constants import Key
from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_concat
from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key


class Others:
    """Everybody but client 0. One of them deals shares; the rest send shares as long as those, since dealing takes
    seconds and client 0 only opens and keeps what it is sent.
    """

    def __init__(self, parties: int, threshold: int) -> None:
        self.configs = {
            Key.SAMPLE_NUMBER: parties, Key.SHARE_NUMBER: parties, Key.THRESHOLD: threshold, Key.CLIPPING_RANGE: 8.0,
            Key.TARGET_RANGE: 1 << 22, Key.MOD_RANGE: 1 << 32, Key.MAX_WEIGHT: 1000.0,
        }  # fmt: skip
        states = [SecAggPlusState(nid=nid) for nid in range(parties)]
        self.keys = {str(state.nid): tuple(_setup(state, self.configs).values()) for state in states}
        self.states, dealer = states[1:], states[1]
        _share_keys(dealer, dict(self.keys))
        self.shares = dealer.rd_seed_share_dict[dealer.nid], dealer.sk1_share_dict[dealer.nid]

    def ciphertexts(self, public: bytes) -> list[bytes]:
        """What the others send to the client of this public key."""
        found = []
        for state in self.states:
            secret = generate_shared_key(bytes_to_private_key(state.sk2), bytes_to_public_key(public))
            found.append(encrypt(secret, share_keys_plaintext_concat(state.nid, 0, *self.shares)))
        return found


def turn(others: Others, x: np.ndarray) -> dict[str, float]:
    """Seconds of each of client 0's messages."""
    me, parties, seconds = SecAggPlusState(nid=0), len(others.keys), {}

    def timed(name: str, step: object, *given: object) -> dict:
        began = process_time()
        answer = step(me, *given)
        seconds[name] = process_time() - began
        return answer

    mine = timed("setup", _setup, others.configs)
    timed("share", _share_keys, others.keys | {"0": tuple(mine.values())})
    others_to_me = {
        Key.CIPHERTEXT_LIST: others.ciphertexts(mine[Key.PUBLIC_KEY_2]), Key.SOURCE_LIST: list(range(1, parties))
    }  # fmt: skip
    timed("masked", _collect_masked_vectors, others_to_me, 600, ndarrays_to_parameters([x]))
    opened = timed("unmask", _unmask, {Key.ACTIVE_NODE_ID_LIST: list(range(parties)), Key.DEAD_NODE_ID_LIST: []})
    assert len(opened[Key.SHARE_LIST]) == parties
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parties", type=int, default=100)
    parser.add_argument("--threshold", type=int, default=67)
    parser.add_argument("--size", type=int, default=1_000_000)
    given = parser.parse_args()
    logging.disable()
    others = Others(given.parties, given.threshold)
    x = np.random.default_rng(0).standard_normal(given.size, np.float32)
    for _ in sys.stdin:
        print(json.dumps({"version": flwr.__version__, "seconds": turn(others, x)}), flush=True)


if __name__ == "__main__":
    main()
