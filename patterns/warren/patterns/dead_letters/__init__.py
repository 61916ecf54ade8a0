"""Dead letters: what could not be handled is parked with the reason; people look at it, replay it or discard it.

The parking lot of a queue is its dead letter queue, `<queue>.dead` by default. Guarantees: reading leaves everything
where it is; a replay publishes a message to the exchange and key that it was published to first, with the same id, and
takes it out of the parking lot only after the broker's confirm, so that nothing is lost wherever it stops; what was replayed
but not yet taken out when it stopped is there twice, with one message id.

The command `warren dlq` does it from a shell.
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
