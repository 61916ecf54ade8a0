"""Delay: messages that arrive later, after any time or at a set one, by queues that expire them or by the broker.

Guarantees: a message that was accepted arrives no earlier than its delay, once or, after a crash of the
broker, more than once; waiting survives restarts of broker and publisher; a long delay never holds up a short
one, because every queue holds one delay only and expires in the order in which it was filled (a TTL a message
in one queue would not: RabbitMQ, "Time-to-Live and Expiration", per-message TTL).

- `Delay`: any delay, and any set time; cancelled by key and listed where it has a store. Its way is `BinaryDelayQueues`
  (queues alone, on any AMQP 0-9-1 broker), or by name `DelayedExchange` (an exchange of type x-delayed-message).
- `wait_queue(target, after)`: a constant delay before a queue. One queue a value, one hop.
- `DelayLadder`: a few steps, each with its own waiting queue and its own queue at the end.
- `WaitQueues` and `Delay` bring back what a retry policy puts off (`App(delay=...)`).
"""

from warren.patterns.delay.binary_delay_queues import BinaryDelayQueues
from warren.patterns.delay.delay import Delay, DelayStatistics
from warren.patterns.delay.delayed_exchange import DelayedExchange
from warren.patterns.delay.ladder import DelayLadder
from warren.patterns.delay.rules import Cancellation, DelayedMessage
from warren.patterns.delay.strategy import DelayStrategy, EntryPoint
from warren.patterns.delay.wait_queues import WaitQueues, wait_queue

__all__ = [
    "BinaryDelayQueues",
    "Cancellation",
    "Delay",
    "DelayLadder",
    "DelayStatistics",
    "DelayStrategy",
    "DelayedExchange",
    "DelayedMessage",
    "EntryPoint",
    "WaitQueues",
    "wait_queue",
]
