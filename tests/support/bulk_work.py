"""Control of the bulk work of a broker that runs in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import wait_until
from warren.broker.connection.broker_node import BrokerNode
from warren.broker.connection.connection import Connection as ServerConnection
from warren.broker.model.bulk_work import BulkWork
from warren.broker.model.policy.policies import Policy
from warren.broker.model.vhost.vhost import VirtualHost


@dataclass
class Bulk:
    """An in-process broker whose bulk work does one unit in each iteration of the event loop."""

    broker: InProcessBroker
    work: BulkWork
    node: BrokerNode
    vhost: VirtualHost

    def block(self, lane: object) -> Callable[[], None]:
        """Let the work of a lane wait. Return the function that ends that."""
        opened: list[bool] = []
        self.broker.call(lambda: self.work.later(lane, lambda _: bool(opened)))
        return lambda: opened.append(True)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do no slices inside the block. Work that begins does one unit at once."""

        def pause(behind: Callable[[], bool]) -> Callable[[], bool]:
            work = self.work
            before, work._log_is_behind = work._log_is_behind, behind
            return before

        before = self.broker.call(lambda: pause(lambda: True))
        try:
            yield
        finally:
            self.broker.call(lambda: pause(before))

    def slices(self) -> int:
        return self.broker.call(lambda: self.work.slices)

    def limit(self, messages: int, pattern: str = "^q$") -> None:
        """Set a policy that limits the length of the queues whose names match a pattern."""
        policy = Policy("bulk", pattern, {"max-length": messages}, "queues")
        self.broker.call(lambda: self.vhost.policies.put(policy))
        wait_until(lambda: not self.work.is_pending(self.vhost.policies), "the policy is applied")

    def connection(self) -> ServerConnection:
        """Return the broker's end of the last connection that was opened."""
        return self.broker.connections()[-1]


def bulk_of(broker: InProcessBroker) -> Bulk:
    assert broker.broker is not None
    node = broker.broker._node
    assert node is not None
    node.virtual_hosts.bulk_work.slice_seconds = 0.0
    return Bulk(broker, node.virtual_hosts.bulk_work, node, node.vhosts[b"/"].vhost)
