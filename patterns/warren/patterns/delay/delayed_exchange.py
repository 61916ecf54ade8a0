"""Delays by the broker itself: an exchange of type x-delayed-message."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from warren.patterns.delay.strategy import EntryPoint
from warren.patterns.delay.wait_queues import forwarding_queue, target_address
from warren.sdk import Binding, Declarable, Exchange, Queue
from warren.sdk.extend import milliseconds

TARGET_HEADER: Final = "warren-delay-target"


class DelayedExchange:
    """Delay strategy for Warren's broker, and for RabbitMQ before 4.3 with the plugin
    `rabbitmq_delayed_message_exchange`.

    A message takes two hops; delays are exact to the millisecond. RabbitMQ's plugin keeps waiting messages on the disk
    of one node, is not made for hundreds of thousands of messages, and ends with RabbitMQ 4.3 (the plugin's README;
    RabbitMQ 4.3's release notes): choose it where the broker is Warren's. A broker without this exchange type closes
    the connection.

    The second hop is a queue for the target, from which messages are dead-lettered to it. A message whose target no longer
    exists waits there until the target is declared again. If somebody has deleted that queue, the message ends in the
    queue `<name>.lost`, where `<name>` is the name of the `Delay`.
    """

    ignores_returns: bool = True
    longest: timedelta = timedelta(milliseconds=2**32 - 1)
    """Longest delay, 49.7 days: the plugin delivers a message with a longer delay at once."""

    def topology(self, name: str) -> Iterator[Declarable]:
        lost = f"{name}.lost"
        yield Exchange(lost, type="fanout")
        yield Queue(lost, dead_letter_exchange=None)
        yield Binding(lost, lost)
        yield Exchange(
            _exchange(name),
            type="x-delayed-message",
            alternate_exchange=lost,
            arguments={"x-delayed-type": "headers"},
        )

    def target_topology(self, name: str, exchange: str, key: str) -> Iterator[Declarable]:
        forwarding = forwarding_queue(_exchange(name), exchange, key)
        yield forwarding
        # Bound by a header, because a header may be longer than a routing key and has no wildcards.
        arguments = {"x-match": "all", TARGET_HEADER: target_address(exchange, key)}
        yield Binding(_exchange(name), forwarding.name, arguments=arguments)

    def entry(self, name: str, exchange: str, key: str, delay: timedelta) -> EntryPoint:
        return EntryPoint(
            _exchange(name),
            key,
            {"x-delay": milliseconds(delay), TARGET_HEADER: target_address(exchange, key)},
        )


def _exchange(name: str) -> str:
    return f"{name}.native"


__all__ = ["DelayedExchange"]
