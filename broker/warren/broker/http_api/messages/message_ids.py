"""Ids of messages in the API, by which later requests name them."""

from __future__ import annotations

import re
import secrets
from typing import Final, NamedTuple

from warren.broker.http_api.api_error import bad_request
from warren.broker.management.request import Json
from warren.broker.model.queue.queue import Queue

RUN: Final = secrets.token_hex(4)
"""Name of this run of the process. After a restart, a transient message may get the number of another one."""

_FORM: Final = re.compile(r"([0-9a-f]{8})-([0-9]{1,18})-([0-9]{1,18})-([0-9]{1,18})")


class MessageId(NamedTuple):
    """Id of a message, valid until the broker stops, or the queue is deleted.

    :ivar run: run of the broker's process.
    :ivar serial: number of the queue; one that is declared again gets another number.
    :ivar rank: rank of the message in its state (see `queue_browser.Position`).
    :ivar sequence: sequence number of the message in the queue.
    """

    run: str
    serial: int
    rank: int
    sequence: int

    @classmethod
    def of(cls, queue: Queue, rank: int, sequence: int) -> MessageId:
        """Return the id of a message of a queue."""
        return cls(RUN, queue.serial, rank, sequence)

    @classmethod
    def parse(cls, text: Json) -> MessageId:
        """Parse an id that a request has.

        :raises ApiError: 400 if it is none.
        """
        found = _FORM.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise bad_request("an id of a message must be one that this API has listed")
        return cls(found[1], int(found[2]), int(found[3]), int(found[4]))

    def names_message_of(self, queue: Queue) -> bool:
        """Return whether it is the id of a message that this queue has or had."""
        return self.run == RUN and self.serial == queue.serial

    def __str__(self) -> str:
        return f"{self.run}-{self.serial}-{self.rank}-{self.sequence}"
