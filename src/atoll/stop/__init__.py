"""Stop: reasons to end a run before its last round."""

from atoll.stop.stops import Budget, Converged, Patience, Target, WallTime

__all__ = ["Budget", "Converged", "Patience", "Target", "WallTime"]
