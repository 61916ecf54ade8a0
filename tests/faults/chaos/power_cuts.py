"""Moments at which the power of a simulated disk fails: before a change of a chosen kind."""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import Enum
from random import Random


class CutPoint(Enum):
    """Kinds of changes of the disk before which the power fails."""

    ANY = "any change"
    COMMIT = "a commit of the definitions"
    """Within a commit of the database, which `DatabasePower` cuts."""
    COMPACTION = "a change during a compaction"
    INDEX = "a change of an index file"
    DELETION = "the deletion of a segment"
    """A removal of the segment or of its index, or the sync of the folder that follows."""
    NEW_SEGMENT = "the first write of a segment"
    OTHER = "a change of another file"
    """A file that is neither segment nor index: the manifest, the format file, a copy of the definitions."""

    @property
    def changes(self) -> int:
        """Number of changes of this kind within which the cut is drawn."""
        return _CHANGES[self]

    @staticmethod
    def draw(random: Random) -> CutPoint:
        """Return one of the kinds at random; any change and commits come up more often."""
        points: list[CutPoint] = [*CutPoint, CutPoint.ANY, CutPoint.ANY, CutPoint.COMMIT]
        return random.choice(points)


_CHANGES = {
    CutPoint.ANY: 1000,
    CutPoint.COMMIT: 60,
    CutPoint.COMPACTION: 40,
    CutPoint.INDEX: 12,
    CutPoint.DELETION: 30,
    CutPoint.NEW_SEGMENT: 10,
    CutPoint.OTHER: 4,
}


class PowerCuts:
    """Counter of changes that decides before which one the power fails.

    :param changes: number of the change of that kind before which the power fails; 0 for never.
    :param compacting: returns whether a segment is being compacted.
    """

    def __init__(
        self,
        point: CutPoint = CutPoint.ANY,
        changes: int = 0,
        compacting: Callable[[], bool] = lambda: False,
    ) -> None:
        self._point = point
        self._left = changes
        self._compacting = compacting
        self._opened = ""
        """The segment that was opened last and not written to yet."""
        self._removed = False
        """The change before was the removal of a segment or an index."""

    def is_due(self, call: str, path: str) -> bool:
        """Return whether the power fails before this change.

        :param call: name of the method of `Files`.
        :param path: file, or folder, that is changed.
        """
        matches = self._matches(call, os.path.basename(path))
        self._removed = call == "unlink"
        # Opening a file changes only its name, which counts as a change with its first write.
        if not matches or (call == "open" and self._point is CutPoint.ANY):
            return False
        self._left -= 1
        return self._left == 0

    def _matches(self, call: str, name: str) -> bool:
        kind = os.path.splitext(name)[1]
        point = self._point
        if point is CutPoint.COMPACTION:
            return self._compacting()
        if point is CutPoint.INDEX:
            return kind == ".idx"
        if point is CutPoint.DELETION:
            return (call == "unlink" and kind in (".log", ".idx")) or (
                call == "sync_folder" and self._removed
            )
        if point is CutPoint.NEW_SEGMENT:
            first = call == "write" and kind == ".log" and name != self._opened
            self._opened = name if first else self._opened
            return first
        if point is CutPoint.OTHER:
            return kind not in (".log", ".idx", ".stream") and call != "sync_folder"
        return point is CutPoint.ANY
