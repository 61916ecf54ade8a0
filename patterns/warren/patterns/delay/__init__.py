"""Delay: messages that arrive after any time or at a set time, by queues that expire them or by the broker.

Guarantees: a message that was accepted arrives no earlier than its delay, once or, after a crash of the broker, more
than once; waiting messages survive restarts of broker and publisher; a long delay never holds up a short one, because
every queue holds one delay only and expires in the order in which it was filled (messages of one queue with different
TTLs would not: RabbitMQ, "Time-to-Live and Expiration", per-message TTL).

- `Delay`: any delay and any set time; with a store, messages can be cancelled by key and listed. Its strategy is
  `BinaryDelayQueues` (queues alone, on any AMQP 0-9-1 broker) or `DelayedExchange` (an exchange of type
  x-delayed-message).
- `wait_queue(target, after)`: a constant delay before a queue. One queue per value, one hop.
- `DelayLadder`: a few fixed delays, each with its own waiting queue and its own target queue.
- `WaitQueues` and `Delay` redeliver the messages that a retry policy delays (`App(delay=...)`).
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
