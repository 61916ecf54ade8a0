"""What an App has done so far, as one value: counts since it started, and what is going on now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, TypeVar

from warren.sdk.app.state import State
from warren.sdk.consume.handler_report import HandlerStatistics
from warren.sdk.consume.workers import ConsumerStatistics
from warren.sdk.messages.types import snake_case
from warren.sdk.publish.publisher_confirms import PublisherStatistics
from warren.sdk.rpc.caller import CallStatistics

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Statistics:
    """A copy: it does not change any more. `dataclasses.asdict` makes it a dict that JSON can carry, but for `state`.

    :ivar reconnects: connections that were made anew, of both.
    :ivar subscriptions: by queue: what the broker delivered and how it was settled.
    :ivar handlers: by queue: what handlers made of it.
    :ivar components: the statistics of the patterns that the App includes, and of `once=`, by kind and name.
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
        """Handlers that run now."""
        return sum(one.running for one in self.subscriptions.values())

    @property
    def handled(self) -> int:
        """Messages that their handlers took to a good end."""
        return sum(one.handled for one in self.handlers.values())

    @property
    def failed(self) -> int:
        """Attempts of handlers that failed, whatever came next."""
        return sum(one.failed_attempts for one in self.handlers.values())

    @property
    def retried(self) -> int:
        """Attempts that were made again, at once or after a delay."""
        return sum(one.retried + one.delayed for one in self.handlers.values())

    @property
    def dead_lettered(self) -> int:
        return sum(one.dead_lettered for one in self.handlers.values())

    @property
    def redelivered(self) -> int:
        """Deliveries that the broker may have made before."""
        return sum(one.redelivered for one in self.subscriptions.values())


def copy_of(value: Value) -> Value:
    """A statistics value as it is now."""
    return replace(value) if is_dataclass(value) and not isinstance(value, type) else value


def statistics_of(parts: Iterable[object]) -> dict[str, Any]:
    """The statistics of components, by kind and name (`deadline order-unpaid`),  with a number where that is not enough."""
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
