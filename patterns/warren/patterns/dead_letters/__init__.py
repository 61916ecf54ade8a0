"""Dead letters: inspect, replay or discard messages that could not be handled.

The parking lot of a queue is its dead letter queue, `<queue>.dead` by default. Guarantees: reading removes no message
and keeps the order; a replay publishes a message to the exchange and key that it was first published to, with the same
id, and removes it from the parking lot only after the broker's confirm, so nothing is lost if the replay is
interrupted. A message that was replayed but not yet removed when the replay stopped exists twice, with one message id.

The command `warren dlq` does the same from a shell.
"""

from warren.patterns.dead_letters.parked_message import ParkedMessage
from warren.patterns.dead_letters.parking_lot import ParkingLot
from warren.patterns.dead_letters.replay import REPLAYED, SelectionResult, discard, replay
from warren.patterns.dead_letters.selection import DeadLetterSelection

__all__ = [
    "REPLAYED",
    "DeadLetterSelection",
    "ParkedMessage",
    "ParkingLot",
    "SelectionResult",
    "discard",
    "replay",
]
