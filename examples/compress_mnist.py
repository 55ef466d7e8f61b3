"""What fewer bytes cost: one federation with every way to compress, accuracy beside the bytes that a party sends.

TopK() with error feedback: Karimireddy, Rebjock, Stich, Jaggi, ICML 2019, arXiv 1901.09847. Quantise(): Alistarh et
al., NeurIPS 2017, arXiv 1610.02132. Rotate() and Sign(): Vargaftik et al., DRIVE, NeurIPS 2021, arXiv 2105.08339.
RandomK() and LowRank(): Konečný et al. 2016, arXiv 1610.05492. MNIST on 100 parties of 600 images, a tenth of them in
a round, McMahan's 2NN of 199,210 numbers, E = 1, B = 10, lr 0.1, 40 rounds. Error feedback comes late here: a party is
asked about four times in all, so what it left out waits for ten rounds.

    python examples/compress_mnist.py --quick     the digits that come with the install: seconds
    python examples/compress_mnist.py             MNIST: some minutes
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import atoll
from atoll.core.wire import Stage
from atoll.data import DataMissing

WAYS: dict[str, Sequence[Stage]] = {
    "plain": (),
    "TopK 1 %": (atoll.TopK(0.01),),
    "TopK 5 %, Quantise 8": (atoll.TopK(0.05), atoll.Quantise(8)),
    "Quantise 8": (atoll.Quantise(8),),
    "Quantise 4": (atoll.Quantise(4),),
    "Sign": (atoll.Sign(),),
    "Rotate, Sign (DRIVE)": (atoll.Rotate(), atoll.Sign(feedback=False, scale="drive")),
    "RandomK 10 %": (atoll.RandomK(0.1),),
    "LowRank 32": (atoll.LowRank(32),),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Accuracy and bytes of every way to compress.")
    parser.add_argument("--quick", action="store_true", help="digits and a small net: seconds")
    quick = parser.parse_args().quick
    try:
        table = atoll.data.load("digits" if quick else "mnist")
    except DataMissing as missing:
        print(f"skipped: {missing}")
        return
    data = table.split(20 if quick else 100, by="iid", seed=0)
    model = atoll.models.mlp(hidden=(64,)) if quick else atoll.models.mlp()
    rounds = 15 if quick else 40

    print(f"{'':<22} {'accuracy':>8} {'bytes':>9} {'of plain':>9}")
    plain = 0
    for words, stages in WAYS.items():
        job = atoll.Job(
            method=atoll.FedAvg(model, epochs=5 if quick else 1, batch=10, lr=0.1),
            select=atoll.Uniform(0.5 if quick else 0.1),
            channel=atoll.Channel([atoll.Weigh(), *stages]),
            rounds=rounds,
            eval_every=rounds,
        )
        run = atoll.simulate(job, data, seed=0)
        last = [fact for fact in run.facts if fact["what"] == "round"][-1]
        sent = last["bytes_up"] // last["answered"]
        plain = plain or sent
        accuracy = run.curve("test.accuracy")[1][-1]
        print(f"{words:<22} {accuracy:8.4f} {sent:9,} {sent / plain:9.2%}", flush=True)


if __name__ == "__main__":
    main()
