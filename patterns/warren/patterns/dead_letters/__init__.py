"""Dead letters: inspect, replay or discard messages that could not be handled.

The parking lot of a queue is its dead letter queue, `<queue>.dead` by default. Guarantees: reading removes no message
and keeps the order; a replay publishes a message to the exchange and key that it was first published to, with the same
id, and removes it from the parking lot only after the broker's confirm, so nothing is lost if the replay is
interrupted. A message that was replayed but not yet removed when the replay stopped exists twice, with one message id.

The command `warren dlq` does the same from a shell.
"""

from warren.patterns.dead_letters.cause import Cause
from warren.patterns.dead_letters.dead_letter_queue import dead_letter_queue
from warren.patterns.dead_letters.edit import EDITED, LetterEdit, replay_edited
from warren.patterns.dead_letters.groups import DeadLetterGroup, group
from warren.patterns.dead_letters.parked_message import ParkedMessage
from warren.patterns.dead_letters.parking_lot import ParkingLot
from warren.patterns.dead_letters.replay import REPLAYED, SelectionResult, discard, find, replay
from warren.patterns.dead_letters.selection import DeadLetterSelection

__all__ = [
    "EDITED",
    "REPLAYED",
    "Cause",
    "DeadLetterGroup",
    "DeadLetterSelection",
    "LetterEdit",
    "ParkedMessage",
    "ParkingLot",
    "SelectionResult",
    "dead_letter_queue",
    "discard",
    "find",
    "group",
    "replay",
    "replay_edited",
]
