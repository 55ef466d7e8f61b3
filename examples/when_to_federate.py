"""Is it worth federating? Training alone, federated and pooled, on the same test: once worth it, once not.

Yu, Bagdasaryan, Shmatikov: Salvaging Federated Learning by Local Adaptation, arXiv 2002.04758, show that a party may be
served worse by the shared model than by its own. Here 100 parties hold 80 digits each and train softmax regression:
with the same mix everywhere (IID) alone is poor and the shared model good; with two digits each (2 shards, McMahan et
al. 2017) a party's own model is better on its own digits and useless on all others. "On own" weighs the central test
set by a party's share of labels. Beside stands what an independent NumPy program measured.

    python examples/when_to_federate.py
"""

from __future__ import annotations

import atoll
from atoll.data import DataMissing

# (alone on everybody's data, alone on own, federated on everybody's, pooled on everybody's)
BESIDE = {"iid": (0.692, None, 0.904, 0.911), "shards": (0.195, 0.974, 0.873, 0.911)}


def main() -> None:
    try:
        table = atoll.data.load("mnist_t10k")
    except DataMissing as missing:
        print(f"skipped: {missing}")
        return
    job = atoll.Job(
        method=atoll.FedAvg(atoll.models.softmax(), epochs=5, batch=10, lr=0.1),
        select=atoll.Uniform(0.1),
        rounds=100,
        eval_every=100,
    )
    for by, beside in BESIDE.items():
        options = {"per_client": 2} if by == "shards" else {}
        found = atoll.compare(job, table.split(100, by=by, seed=0, **options))
        measured = (found.alone_all.mean(), found.alone_own.mean(), found.federated_all, found.pooled_all)
        print(f"{'2 shards' if by == 'shards' else 'IID'}, accuracy        Atoll   beside")
        names = ("alone, on all", "alone, on own", "federated, on all", "pooled, on all")
        for name, mine, theirs in zip(names, measured, beside, strict=True):
            print(f"  {name:<19} {mine:8.3f} {'' if theirs is None else f'{theirs:8.3f}'}")
        print(f"  {found.verdict}\n")


if __name__ == "__main__":
    main()
