"""Programs over columns: parties hold different columns of the same rows."""

from atoll.programs.vertical.moments import JointMoments

__all__ = ["JointMoments"]
