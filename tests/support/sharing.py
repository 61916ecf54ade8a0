"""Who of the processes that share the tests gets which file."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

SLOW = "tests/spark/"
"""Files with Spark in them, which are long. One that came last would be waited for."""


class OneWithoutSpark(LoadFileScheduling):  # type: ignore[misc]
    """File by file, and one of three processes takes those with Spark in them last.

    A Java machine keeps a core busy by itself: with three at a time on two cores, Spark's Python workers do not start
    within the ten seconds that it gives them.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        if len(self.nodes) > 2 and node is self.nodes[0]:
            quick = next((scope for scope in self.workqueue if not scope.startswith(SLOW)), None)
            if quick is not None:
                self.workqueue.move_to_end(quick, last=False)
        super()._assign_work_unit(node)
