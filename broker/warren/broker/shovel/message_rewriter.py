"""Changes of a message on its way: exchange, routing key, properties and the header `x-shovelled`."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from warren.broker.shovel.definition import LOCAL, Destination, Source
from warren.wire import field_tables, methods, properties
from warren.wire.field_tables import Field, Value, field_of, long_field

FORWARD_HEADER: Final = "x-shovelled"
"""Header with a table for each shovel that the message has passed, the last one first."""
TIMESTAMP_HEADER: Final = "x-shovelled-timestamp"

_FRAME: Final = struct.Struct(">BHI")
_SHORT_ITEMS: Final = struct.Struct(">I")


class MessageRewriter:
    """Rewriter of the messages of one shovel, from a delivery to the frames of a publish.

    :param shovel: name of the shovel.
    :param vhost: virtual host that it is defined in.
    :param cluster: name of the broker's cluster.
    :param uris: source and destination without credentials, as they are connected.
    :param now: returns the time in seconds since 1970.
    """

    def __init__(
        self,
        source: Source,
        destination: Destination,
        shovel: str,
        vhost: str,
        cluster: str,
        uris: tuple[str, str],
        channel: int,
        frame_max: int,
        now: Callable[[], float],
    ) -> None:
        self._channel = channel
        self._body_max = frame_max - 8
        self._exchange = b"" if destination.queue is not None else destination.exchange
        self._key = destination.queue if destination.queue is not None else destination.exchange_key
        self._properties = dict(destination.properties)
        self._is_local = destination.protocol == LOCAL
        self._adds_timestamp = destination.adds_timestamp
        self._now = now
        self._forward: dict[str, Value] = {}
        if destination.adds_forward_headers:
            self._forward = {
                "shovelled-by": cluster,
                "shovel-type": "dynamic",
                "shovel-name": shovel,
                "shovel-vhost": vhost,
                "src-uri": uris[0],
                "dest-uri": uris[1],
                **_source_fields(source),
                **_destination_fields(destination),
            }
        self._is_unchanged = not (self._properties or self._forward or self._adds_timestamp)
        self._method: bytes | None = None
        if self._exchange is not None and self._key is not None:
            self._method = self._publish_frame(self._exchange, self._key)

    def publish_frames(self, deliver: bytes, header: bytes, body: bytes) -> bytes:
        """Return the frames of the publish that forwards a message.

        :param deliver: payload of its basic.deliver.
        :param header: payload of its content header.
        """
        method = self._method
        if method is None:
            position = 4 + 1 + deliver[4] + 9
            exchange = deliver[position + 1 : position + 1 + deliver[position]]
            position += 1 + len(exchange)
            key = deliver[position + 1 : position + 1 + deliver[position]]
            method = self._publish_frame(
                exchange if self._exchange is None else self._exchange,
                key if self._key is None else self._key,
            )
        if not self._is_unchanged:
            header = self._rewritten(header, len(body))
        parts = [method, _FRAME.pack(2, self._channel, len(header)), header, b"\xce"]
        for start in range(0, len(body), self._body_max):
            piece = body[start : start + self._body_max]
            parts += (_FRAME.pack(3, self._channel, len(piece)), piece, b"\xce")
        return b"".join(parts)

    def _publish_frame(self, exchange: bytes, key: bytes) -> bytes:
        return methods.frame(self._channel, "basic.publish", 0, exchange, key, False, False)

    def _rewritten(self, header: bytes, size: int) -> bytes:
        found = properties.decode(header)
        found.update(self._properties)
        if self._forward or self._adds_timestamp:
            headers = dict(found.headers)
            if self._is_local:
                self._add_local_headers(headers)
            else:
                self._add_headers(headers)
            found["headers"] = headers
        return properties.encode(found, size)

    def _add_headers(self, headers: dict[str, Field]) -> None:
        if self._forward:
            table = field_tables.encode_value(self._forward)
            earlier = headers.get(FORWARD_HEADER)
            items = table + (earlier.raw[5:] if earlier is not None and earlier.kind == "A" else b"")
            headers[FORWARD_HEADER] = Field("A", None, b"A" + _SHORT_ITEMS.pack(len(items)) + items)
        if self._adds_timestamp:
            headers[TIMESTAMP_HEADER] = long_field(int(self._now()))

    def _add_local_headers(self, headers: dict[str, Field]) -> None:
        """Add the headers that RabbitMQ's protocol `local` adds."""
        for name in ("shovelled-by", "shovel-type", "shovel-name"):
            if self._forward:
                headers[f"x-opt-{name}"] = field_of(self._forward[name])
        if self._adds_timestamp:
            headers[f"x-opt-{TIMESTAMP_HEADER.removeprefix('x-')}"] = long_field(int(self._now() * 1000))


def _source_fields(source: Source) -> dict[str, Value]:
    if source.queue:
        return {"src-queue": _text(source.queue)}
    return {"src-exchange": _text(source.exchange), "src-exchange-key": _text(source.exchange_key)}


def _destination_fields(destination: Destination) -> dict[str, Value]:
    ends = {
        "dest-exchange": destination.exchange,
        "dest-exchange-key": destination.exchange_key,
        "dest-queue": destination.queue,
    }
    return {name: _text(value) for name, value in ends.items() if value is not None}


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
