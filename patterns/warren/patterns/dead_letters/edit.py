"""Replay of one dead letter with another body, other headers or other properties."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from warren.patterns.dead_letters.parked_message import ParkedMessage
from warren.patterns.dead_letters.parking_lot import ParkingLot
from warren.patterns.dead_letters.replay import publish_again
from warren.sdk import App, ConfigError, Delivery
from warren.sdk.extend import count_in

EDITED: Final = "warren-edited"
"""Header of a message that was edited before its replay: number of times that it was edited."""

EDITABLE_PROPERTIES: Final = frozenset(
    {
        "app_id",
        "content_encoding",
        "content_type",
        "correlation_id",
        "priority",
        "reply_to",
        "timestamp",
        "type",
    }
)
"""Properties that an edit may change. The message id stays, so that `Once` and a second replay recognise the message."""


@dataclass(frozen=True, slots=True)
class LetterEdit:
    """Changes of a dead letter before its replay.

    :ivar body: the new body; None keeps the old one.
    :ivar headers: headers to set; a value of None removes the header. Headers that begin with `warren-` or `x-` are the
        SDK's and the broker's, and cannot be changed.
    :ivar properties: properties to set; a value of None removes the property. Only those of `EDITABLE_PROPERTIES`.
    """

    body: bytes | None = None
    headers: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)

    def apply(self, delivery: Delivery) -> Delivery:
        """Return the edited message, without the changed headers, which a replay sets.

        :raises ConfigError: a header or property cannot be changed, or the new body is not JSON although the message's
            `content_type` says so. Also for a new body of an encrypted or signed message, which no consumer would accept.
        """
        for name in self.headers:
            if is_reserved(name):
                raise ConfigError(f"the header {name!r} cannot be edited: the SDK or the broker sets it")
        for name in self.properties:
            if name not in EDITABLE_PROPERTIES:
                raise ConfigError(
                    f"the property {name!r} cannot be edited; these can: {', '.join(sorted(EDITABLE_PROPERTIES))}"
                )
        changed = {**delivery.properties, **self.properties}
        properties = {name: value for name, value in changed.items() if value is not None}
        if self.body is not None:
            _check_body(self.body, delivery, properties)
        return delivery.detached(body=self.body, properties=properties)


async def replay_edited(
    lot: ParkingLot, app: App, message: ParkedMessage, edit: LetterEdit, *, to_exchange: bool = False
) -> None:
    """Publish an edited dead letter as `replay` would, and remove the original when the broker has confirmed the new one.

    The new message has the same id, and the header `warren-edited`. If this call fails or its process dies, the original
    is in the dead letter queue; after a crash between confirm and removal both exist, with one message id.

    :param app: App that publishes the message.
    :param message: a message of this lot.
    :param to_exchange: publish to the exchange and routing key of the first publish, instead of the queue in which the
        message died.
    :raises ConfigError: the edit is not possible; see `LetterEdit.apply`.
    :raises WarrenError: the message could not be published; it is still in the dead letter queue.
    """
    edited = edit.apply(message.delivery)
    count = count_in(message.delivery.readable_headers.get(EDITED), 0) + 1
    await publish_again(app, message, to_exchange, delivery=edited, headers={**edit.headers, EDITED: count})
    lot.remove(message)


def is_reserved(header: str) -> bool:
    """Return whether the SDK or the broker sets this header, so that an edit cannot change it."""
    return header.startswith(("warren-", "x-")) or header in ("CC", "BCC")


def _check_body(body: bytes, delivery: Delivery, properties: Mapping[str, Any]) -> None:
    if encoding := properties.get("content_encoding"):
        raise ConfigError(
            f"the body cannot be edited: it is encoded ({encoding}); publish a new message, and discard this one"
        )
    if "warren-signature" in delivery.readable_headers:
        raise ConfigError(
            "the body cannot be edited: the message is signed; publish a new message, and discard this one"
        )
    content_type = str(properties.get("content_type") or "").partition(";")[0].strip().lower()
    if content_type == "application/json" or content_type.endswith("+json"):
        try:
            json.loads(body)
        except ValueError as error:
            raise ConfigError(
                f"the new body is not JSON, as its content type {content_type} says: {error}"
            ) from None


__all__ = ["EDITABLE_PROPERTIES", "EDITED", "LetterEdit", "is_reserved", "replay_edited"]
