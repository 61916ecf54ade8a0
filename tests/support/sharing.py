"""Distribution of test files over pytest-xdist's workers."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from tests.support.tiers import Tier, chosen

SLOW = "tests/spark/"
"""Folder of the tests that need Spark. They run first: a long file that came last would be waited for."""


class SparkAwareScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Distribution by file that bounds the Spark sessions that run side by side.

    A Java machine keeps a core busy by itself. With three of them on two cores, Spark's Python workers do not start
    within the ten seconds that Spark gives them. In tier `test` one worker takes all files with Spark, so that one session
    serves them; in tier `all` one worker of three takes them last.
    """

    def _split_scope(self, nodeid: str) -> str:
        if chosen() is Tier.TEST and nodeid.startswith(SLOW):
            return SLOW
        return str(super()._split_scope(nodeid))

    def _assign_work_unit(self, node: WorkerController) -> None:
        if len(self.nodes) > 2 and node is self.nodes[0]:
            quick = next((scope for scope in self.workqueue if not scope.startswith(SLOW)), None)
            if quick is not None:
                self.workqueue.move_to_end(quick, last=False)
        super()._assign_work_unit(node)
