"""Mark of a stream: an exchange that the broker deletes together with the stream, and that so tells one stream from a later
one of the same name.

AMQP 0-9-1 gives a stream no identity: after a deletion and a new declaration the offsets begin at 0 again, and nothing in
the deliveries shows it. But a deletion removes the bindings of a queue, and with the last binding an auto-delete exchange.
The exchange is therefore there as long as this stream is, whatever retention removes from it. Its name is random, so that no
other process makes it again for a later stream.
"""

from __future__ import annotations

from typing import Final
from uuid import uuid4

from warren.sdk.errors import TopologyMismatch
from warren.sdk.transport.error_translation import translate_errors
from warren.sdk.transport.session import Session

ANSWER_SECONDS = 30.0
MARK: Final[dict[str, str | bool]] = {
    "type": "fanout",
    "durable": True,
    "auto_delete": True,
    "internal": True,
}


async def mark_stream(session: Session, stream: str, reader: str) -> str:
    """Declare a new mark and bind it to the stream; return its name. Nobody publishes to it.

    :param reader: name of the reader, with which the name of the mark begins.
    :raises TopologyMismatch: if there is no such stream (404), or the rights for it are missing (403).
    :raises WarrenError: if the connection is lost.
    """
    mark = f"{reader}.mark.{uuid4().hex[:12]}"
    channel = await session.channel()
    try:
        with translate_errors(f"cannot mark stream {stream!r} with exchange {mark!r}"):
            topology = channel.topology(ANSWER_SECONDS)
            await channel.run(topology.declare_exchange(mark, MARK, {}))
            await channel.run(topology.bind_queue(stream, mark, "", {}))
    finally:
        channel.close_in_background()
    return mark


async def has_mark(session: Session, mark: str) -> bool:
    """Return whether the stream still exists that was marked with this exchange.

    :raises WarrenError: if the connection is lost.
    """
    channel = await session.channel()
    try:
        with translate_errors(f"cannot check exchange {mark!r}"):
            await channel.run(channel.topology(ANSWER_SECONDS).check_exchange(mark))
    except TopologyMismatch as error:
        if error.reply_code == 404:
            return False
        raise
    finally:
        channel.close_in_background()
    return True


__all__ = ["has_mark", "mark_stream"]
