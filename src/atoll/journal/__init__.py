"""The journal: facts and kept memory of a run, in a folder. Everything shown anywhere is a function of it."""

from atoll.journal.read import RunRecord, read, reopen
from atoll.journal.write import Journal

__all__ = ["Journal", "RunRecord", "read", "reopen"]
