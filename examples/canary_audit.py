"""Does the noise of example-level DP hide an example from a server that knows the seed of the job? Ask canaries.

A party with 500 examples, every second one a canary, gives one DP-SGD answer at a time. Two servers look for the
canaries: one takes the answers as they are, one replays the party's random draws from the seed and subtracts them.
Each finds a lower bound on ε (95 % confidence), beside the ε that the party states. A bound above it refutes it.

    python examples/canary_audit.py             some seconds; real noise is new in every run, so figures move a little
    python examples/canary_audit.py --asks 40   fewer answers: quicker, and lower bounds
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial

from atoll import ExampleDP
from atoll.attacks.canary import Canaries, audit_examples
from atoll.core.world import World

SEED = 7


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--asks", type=int, default=120, help="answers of the party (default: 120)")
    asks = options.parse_args().asks
    stated = ExampleDP(clip=1.0, multiplier=1.2)
    print("batches  noise of the party     stated    looks  replays   verdict")
    for batch in (None, 125):
        party = Canaries(stated, batch=batch)
        weak = replace(party, example_dp=replace(stated, multiplier=stated.multiplier / 4))
        cases = {
            "operating system": partial(party.answer, World.real(SEED)),
            "from the seed": partial(party.answer, World.simulated(SEED)),
            "a quarter of it": partial(weak.answer, World.real(SEED)),
        }
        for name, answer in cases.items():
            found = audit_examples(party, answer, seed=SEED, asks=asks)
            verdict = "refuted" if found.caught else "not refuted"
            bounds = f"{found.looks.claimed:8.2f} {found.looks.lower:8.2f} {found.replays.lower:8.2f}"
            print(f"{batch or 'full':<8} {name:<20} {bounds}   {verdict}")


if __name__ == "__main__":
    main()
