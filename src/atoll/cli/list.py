"""`atoll list`: every part that a job file can name."""

from __future__ import annotations

import sys


def list_all(kind: str | None) -> None:
    """Print the parts of a kind, or of all kinds."""
    from atoll.catalogue import PARTS, BadJob, entries, nearest
    from atoll.data import SCHEMES, names
    from atoll.jobfile import examples

    splits = {name: (scheme.__doc__ or "").split("\n")[0] for name, scheme in SCHEMES.items()}
    extra = {"data": names(), "split": splits}
    known = [*PARTS, *extra, "example"]
    if kind is not None and kind not in known:
        raise BadJob(f"there is no kind '{kind}'; {nearest(kind, known)}")
    write = sys.stdout.write
    for k in known if kind is None else [kind]:
        write(f"{k}\n")
        if k == "example":
            for name, purpose in examples().items():
                write(f"  {name:<14} {purpose}\n")
        elif k in extra:
            for name, purpose in extra[k].items():
                write(f"  {name:<14} {purpose}\n")
        else:
            for name, purpose, shown in entries(k):
                write(f"  {name:<14} {purpose}\n")
                if shown:
                    write(f"  {'':<14}   {', '.join(shown)}\n")
        write("\n")
