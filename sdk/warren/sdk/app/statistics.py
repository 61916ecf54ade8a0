"""Statistics of an App as one value: counts since its start, and gauges of the moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, TypeVar

from warren.sdk.app.state import State
from warren.sdk.consume.handler_report import HandlerStatistics
from warren.sdk.consume.handler_tasks import ConsumerStatistics
from warren.sdk.messages.types import snake_case
from warren.sdk.publish.publisher_confirms import PublisherStatistics
from warren.sdk.rpc.caller import CallStatistics

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of one run of an App; a copy that no longer changes.

    `dataclasses.asdict` returns a dict that can be written as JSON, except for `state`.

    :ivar reconnects: new connections after losses, of the publish and the consume connection together.
    :ivar subscriptions: by queue: counts of deliveries and settlements.
    :ivar handlers: by queue: counts of the outcomes of handlers.
    :ivar components: statistics of the included patterns and of `once=`, by kind and name.
    """

    state: State
    reconnects: int
    publisher: PublisherStatistics
    calls: CallStatistics
    subscriptions: Mapping[str, ConsumerStatistics]
    handlers: Mapping[str, HandlerStatistics]
    components: Mapping[str, Any]

    @property
    def in_flight(self) -> int:
        """Number of handlers that are running now."""
        return sum(one.running for one in self.subscriptions.values())

    @property
    def handled(self) -> int:
        """Number of messages that a handler handled successfully."""
        return sum(one.handled for one in self.handlers.values())

    @property
    def failed(self) -> int:
        """Number of attempts in which a handler raised an error, also if a later attempt succeeded."""
        return sum(one.failed_attempts for one in self.handlers.values())

    @property
    def retried(self) -> int:
        """Number of repeated attempts, immediate and delayed."""
        return sum(one.retried + one.delayed for one in self.handlers.values())

    @property
    def dead_lettered(self) -> int:
        """Number of messages that the SDK dead-lettered."""
        return sum(one.dead_lettered for one in self.handlers.values())

    @property
    def redelivered(self) -> int:
        """Number of deliveries with the `redelivered` flag: the broker may have delivered the message before."""
        return sum(one.redelivered for one in self.subscriptions.values())


def copy_of(value: Value) -> Value:
    """Return a copy of a statistics object, so that later events do not change it; return any other value itself."""
    return replace(value) if is_dataclass(value) and not isinstance(value, type) else value


def statistics_of(parts: Iterable[object]) -> dict[str, Any]:
    """Return the statistics of all `parts` (components, and `once=` of handlers) that have any; the keys are kind and
    name, such as `deadline order-unpaid`.

    Further parts with the same kind and name get a number: `deadline order-unpaid #2`.
    """
    found: dict[str, Any] = {}
    for part in parts:
        value = getattr(part, "statistics", None)
        if not is_dataclass(value) or any(value is known for known in found.values()):
            continue
        kind, name = snake_case(type(part).__name__), getattr(part, "name", "")
        base = f"{kind} {name}" if isinstance(name, str) and name else kind
        same = [key for key in found if key == base or key.startswith(f"{base} #")]
        found[f"{base} #{len(same) + 1}" if same else base] = value
    return found
