"""The matrix products of one local step, alone on one core: what a step would take if there were nothing else to it.

    OPENBLAS_NUM_THREADS=1 python bench/products.py [2nn cnn lstm softmax tiny]     # prints a JSON line of seconds

`rounds.py` sets it beside what Atoll's local training takes; the rest is moving parameters, unpacking images, gates and
activations, and waiting for what comes before.
"""

import json
import sys
import time

import numpy as np

# (times, rows, inputs, outputs) of each layer of a step of ten samples; images as columns, 80 steps in an LSTM
LAYERS = {
    "2nn": [(1, 10, 784, 200), (1, 10, 200, 200), (1, 10, 200, 10)],
    "cnn": [(1, 7840, 25, 32), (1, 1960, 800, 64), (1, 10, 3136, 512), (1, 10, 512, 10)],
    "lstm": [(1, 800, 8, 1024), (80, 10, 256, 1024), (1, 800, 256, 1024), (80, 10, 256, 1024), (1, 800, 256, 90)],
    "softmax": [(1, 10, 784, 10)],
    "tiny": [(1, 10, 60, 10)],
}


def operations(workload: str) -> float:
    """Of one step: forward, the gradient of the weights, that of the inputs (of no use where they are the data)."""
    own = workload != "lstm"  # whose first inputs are an embedding
    return sum((4 if own and k == 0 else 6) * times * n * i * o for k, (times, n, i, o) in enumerate(LAYERS[workload]))


def seconds(workload: str) -> float:
    """Of all products of one step; the least of many, as nothing else should count."""
    generator, best = np.random.default_rng(0), float("inf")
    layers = []
    for times, n, i, o in LAYERS[workload]:
        x, w, d = (generator.random(shape, np.float32) for shape in ((times * n, i), (i, o), (times * n, o)))
        layers.append((times, n, x, w, d))
    for _ in range(30):
        began = time.perf_counter()
        for k, (times, n, x, w, d) in enumerate(layers):
            for t in range(times):
                x[t * n : (t + 1) * n] @ w
                if k or workload == "lstm":
                    d[t * n : (t + 1) * n] @ w.T
            x.T @ d
        best = min(best, time.perf_counter() - began)
    return best


if __name__ == "__main__":
    print(json.dumps({workload: seconds(workload) for workload in sys.argv[1:] or LAYERS}))
