"""FedAvg on handwritten digits that come with the install: the eight lines of the README.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized
Data, AISTATS 2017, arXiv 1602.05629. Twenty parties, two shards of sorted digits each, so nobody has seen them all.

    python examples/quick.py
"""

from __future__ import annotations

import atoll


def main() -> None:
    data = atoll.data.load("digits").split(20, by="shards", per_client=2, seed=0)
    job = atoll.Job(
        method=atoll.FedAvg(atoll.models.mlp(hidden=(64,)), epochs=5, batch=10, lr=0.1),
        select=atoll.Uniform(0.5),
        rounds=100,
        stop=[atoll.Target("test.accuracy", 0.9)],
    )
    run = atoll.simulate(job, data, seed=0)

    rounds, values = run.curve("test.accuracy")
    print("round   test accuracy")
    for t, value in list(zip(rounds, values, strict=True))[:: max(1, len(rounds) // 8)]:
        print(f"{t:5d}   {value:13.3f}")
    print(f"ended: {run.reason}")


if __name__ == "__main__":
    main()
