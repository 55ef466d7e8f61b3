"""The journal: facts and kept memory of a run, in a folder. Everything shown anywhere is a function of it."""

from atoll.journal.read import Past, RunRecord, read, reopen, rounds_done
from atoll.journal.sealed import Damaged
from atoll.journal.write import Journal

__all__ = ["Damaged", "Journal", "Past", "RunRecord", "read", "reopen", "rounds_done"]
