"""Reply codes of AMQP 0-9-1, RabbitMQ's reply texts, and the exception that closes a channel or connection."""

from __future__ import annotations

from enum import IntEnum


class Reply(IntEnum):
    """Reply code (AMQP 0-9-1 section 1.2, constants). The names are those in RabbitMQ's reply texts."""

    SUCCESS = 200
    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    NO_CONSUMERS = 313
    CONNECTION_FORCED = 320
    INVALID_PATH = 402
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541

    @property
    def closes_channel_only(self) -> bool:
        """True for soft errors, which close the channel; all other errors close the connection."""
        return self in SOFT_ERRORS


SOFT_ERRORS = frozenset(
    (
        Reply.CONTENT_TOO_LARGE,
        Reply.NO_CONSUMERS,
        Reply.ACCESS_REFUSED,
        Reply.NOT_FOUND,
        Reply.RESOURCE_LOCKED,
        Reply.PRECONDITION_FAILED,
    )
)

TEXT_LIMIT = 255
"""Longest reply text in bytes: it is a short string."""


def reply_text(code: Reply, explanation: str) -> str:
    """Return the reply text `NAME - explanation`, with the name of the code, as RabbitMQ formats it.

    A text of more than 255 bytes is cut and ends with `...`.
    """
    # The explanation may quote a name that is not UTF-8 (its bytes are surrogates), and the cut may split a character.
    text = f"{code.name} - {explanation[: TEXT_LIMIT + 1]}".encode(errors="replace")
    if len(text) <= TEXT_LIMIT:
        return text.decode()
    return text[: TEXT_LIMIT - 3].decode(errors="ignore") + "..."


def erlang_binary(data: bytes) -> str:
    """Format bytes as Erlang prints a binary, for texts that quote a peer's bytes: `<<"abc">>` or `<<1,2,3>>`."""
    if data and all(32 <= octet < 127 for octet in data):
        text = data.decode("ascii").replace("\\", "\\\\").replace('"', '\\"')
        return f'<<"{text}">>'
    return erlang_octets(data)


def erlang_octets(data: bytes) -> str:
    """Format bytes as Erlang prints a binary that is not text: `<<1,2,3>>`."""
    return f"<<{','.join(map(str, data))}>>"


def describe_frame(kind: int, payload: bytes) -> str:
    """Describe a frame as RabbitMQ's reply texts do: its type and the first 16 octets of its payload.

    :param kind: frame type: 1 for a method, 2 for a header, 3 for a body, 8 for a heartbeat
    """
    which = "all" if len(payload) <= 16 else "first 16"
    return f"type {kind}, {which} octets = {erlang_binary(payload[:16])}"


class AmqpError(Exception):
    """Error that closes the channel it occurs on, or the whole connection, with a reply code and text for the peer.

    `code.closes_channel_only` decides which: a soft error, such as 404, closes the channel only. If the channel is not
    open, it closes the connection too.

    :param code: reply code of the close method
    :param explanation: reply text after the name of the code
    :param class_id: class id of the method that failed, for the close method; 0 if none failed
    :param method_id: method id of the method that failed; 0 if none failed
    """

    def __init__(self, code: Reply, explanation: str, class_id: int = 0, method_id: int = 0) -> None:
        super().__init__(f"{code.name} - {explanation}")
        self.code = code
        self.explanation = explanation
        self.class_id = class_id
        self.method_id = method_id

    @property
    def text(self) -> str:
        """Reply text of the close method, at most 255 bytes."""
        return reply_text(self.code, self.explanation)
