"""The table of faults: `python tests/network/faults/table.py [kills flips pauses disk line] [--some N]`.

Each row counts the tries of one kind, how many runs finished with the bits and facts of a run that nobody disturbed,
and how many said in a sentence what to do and did so after it was done. Whatever else came of a try is listed under the
table, and the command then exits with 1. `--some N` makes N tries of each kind. Linux only, and mounting small disks
takes a superuser.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # as pytest does

import trials
from trials import EQUAL, SENTENCE, Say, Try

import spawn

Kind = Callable[[int, Path, Say], Iterator[Try]]
KINDS: Mapping[str, tuple[Kind, int]] = {
    "kills": (trials.kills, 200),
    "flips": (trials.flips, 100),
    "pauses": (trials.pauses, 50),
    "disk": (trials.disk, 20),
    "line": (trials.line, 9),
}
HEADS = ("fault", "tries", EQUAL, SENTENCE, "anything else", "minutes")


def row(name: str, found: Iterable[Try], seconds: float) -> tuple[str, ...]:
    ends = Counter("anything else" if one.is_wrong else one.end for one in found)
    return (name, str(ends.total()), *(str(ends[head]) for head in HEADS[2:5]), f"{seconds / 60:.0f}")


def shown(rows: Iterable[tuple[str, ...]]) -> str:
    return "".join("| " + " | ".join(cells) + " |\n" for cells in (HEADS, tuple("---" for _ in HEADS), *rows))


def made(kind: str, tries: int, folder: Path, say: Say) -> tuple[list[Try], tuple[str, ...]]:
    """Make the tries of a kind; gives them with their row."""
    began = time.monotonic()
    found = [*KINDS[kind][0](tries, folder, say)]
    return found, row(kind, found, time.monotonic() - began)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--some", type=int, metavar="N", help="tries of each kind (default: all)")
    said = parser.parse_args(words)
    for kind in said.kinds:
        if kind not in KINDS:
            parser.error(f"{kind} is no kind of fault: choose from {', '.join(KINDS)}")
    spawn.pytest_configure()
    rows, wrong = list[tuple[str, ...]](), list[Try]()

    def say(line: str) -> None:
        sys.stderr.write(f"  {line}\n")
        sys.stderr.flush()

    for kind in said.kinds or KINDS:
        with spawn.cleared(), tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            found, one = made(kind, said.some or KINDS[kind][1], Path(folder), say)
        rows.append(one)
        wrong += [each for each in found if each.is_wrong]
        for (fault, end), times in sorted(Counter(found).items()):
            say(f"{kind}: {times} x {fault}: {end}")
    sys.stdout.write(shown(rows) + "".join(f"{one.fault}: {one.end}\n" for one in wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
