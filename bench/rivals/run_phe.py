"""CPU seconds that phe (with gmpy2) takes to encrypt a value: one measurement, a JSON line, for each line of input."""

import argparse
import json
import random
import sys
from importlib.metadata import version
from time import process_time

from phe import paillier
from phe.util import HAVE_GMP


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bits", type=int, default=2048)
    parser.add_argument("--values", type=int, default=50)
    given = parser.parse_args()
    if not HAVE_GMP:
        sys.exit("phe runs without gmpy2, which would be no fair comparison")
    public, secret = paillier.generate_paillier_keypair(n_length=given.bits)
    values = random.Random(0).choices(range(-(2**15), 2**15), k=given.values)
    for _ in sys.stdin:
        began = process_time()
        sealed = [public.encrypt(v) for v in values]
        seconds = process_time() - began
        assert secret.decrypt(sealed[0]) == values[0]
        print(json.dumps({"version": version("phe"), "seconds": seconds / len(values)}), flush=True)


if __name__ == "__main__":
    main()
