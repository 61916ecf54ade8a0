"""Interface of the exchange types that send each message to one binding: hash exchanges and random exchanges."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol, TypeAlias, Union

from warren.broker.model.exchange.exchange import Exchange
from warren.wire.reply_codes import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.model.exchange.exchange import Binding
    from warren.broker.model.message import Message
    from warren.broker.model.queue.queue import Queue
    from warren.wire.field_tables import Field

    Destination: TypeAlias = Union[Queue, Exchange]  # noqa: UP007


class BindingSelector(Protocol):
    """Part of a hash or random exchange: selects one of its bindings for each message."""

    @property
    def inspects_message(self) -> bool:
        """True if messages with the same routing key may go to different destinations.

        Their routes are then not cached.
        """
        ...

    def add(self, binding: Binding) -> None:
        """Add a binding to those that `select` chooses from.

        :raises AmqpError: 406 if its key or its destination is not allowed for this exchange type.
        """
        ...

    def remove(self, binding: Binding) -> None:
        """Remove a binding that was added before from those that `select` chooses from."""
        ...

    def remove_destination(self, destination: Destination) -> None:
        """Remove all bindings of a destination, which is being deleted, from those that `select` chooses from."""
        ...

    def select(self, key: bytes, headers: dict[str, Field], message: Message | None) -> list[Destination]:
        """Return the destination of a message, as a list of one; an empty list if there is no binding.

        :param key: the routing key.
        :param headers: the message's decoded headers, by name.
        :param message: the message; None if no exchange that routes it needs more than its routing key and headers.
        """
        ...


def hash_bytes(data: bytes) -> int:
    """Return a 64-bit hash that is the same in every process, so that hash exchanges route alike after a restart."""
    return int.from_bytes(blake2b(data, digest_size=8).digest())


def precondition_failed(reason: str) -> AmqpError:
    """Return a channel error 406 with `reason`, in RabbitMQ's words, as its reply text."""
    return AmqpError(Reply.PRECONDITION_FAILED, reason)


def printable(data: bytes) -> str:
    """Decode a name or a key from the wire for an error text. Bytes that are not UTF-8 are replaced."""
    return data.decode(errors="replace")
