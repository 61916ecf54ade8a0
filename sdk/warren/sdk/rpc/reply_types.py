"""Reply codecs: encode and decode the replies of a request class, with unions and faults."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

from pydantic import ValidationError

from warren.sdk.errors import ConfigError, Fault, RemoteError
from warren.sdk.messages.content_encodings import BOM, decode_body, is_plain
from warren.sdk.messages.content_types import is_msgpack, media_type
from warren.sdk.messages.type_codec import TypeCodec, type_codec
from warren.sdk.messages.types import Message, RequestMessage, snake_case
from warren.sdk.messages.validation_errors import format_validation_error
from warren.sdk.rpc.remote_errors import ERROR_TYPE, decode_error
from warren.wire.delivery_scanner import PropertyValue


class RawReply(NamedTuple):
    """A reply as received: properties by their AMQP names, the encoded header table, and the body."""

    properties: dict[str, PropertyValue]
    table: bytes
    body: bytes


class ReplyCodec:
    """Codec for the replies of one request class.

    :param codec: codec of the reply type.
    :param members: member classes of a union, each by its name in the `type` property of replies, and by its aliases; empty
        if the reply type is not a union.
    :param faults: fault classes by their code.
    """

    def __init__(
        self,
        codec: TypeCodec,
        members: Mapping[str, type],
        faults: Mapping[str, type[Fault[Any]]],
    ) -> None:
        self._codec = codec
        self._members = members
        self._faults = faults

    def check_writable(self) -> None:
        """Check that replies can be written so that callers read them back.

        :raises ConfigError: if they cannot; the text names the fields and the remedies.
        """
        self._codec.check_writable()

    def write(self, result: object) -> bytes:
        """Return the handler's result as JSON.

        If the reply type is a union, the name of the member and a line feed come before the JSON. `split` separates
        them before the reply is sent. The pattern `Once` (the handler option `once=`) stores the returned bytes for
        repeated requests, so they have to name the member.

        :raises ValueError: if the result is not of the reply type; the error's text quotes nothing of the result.
        :raises ConfigError: if the result would not read back equal.
        """
        try:
            value = self._codec.read_object(result)
        except ValidationError as error:
            raise ValueError(
                f"the result is not what the request says: {format_validation_error(error)}"
            ) from None
        if not self._members:
            return self._codec.write_json(value)
        name = name_of(type(value))
        member = self._members.get(name)
        # The reader reads the member that is named, not the first one that fits.
        codec = self._codec if member is None else type_codec(member)
        return name.encode() + b"\n" + codec.write_json(value)

    def split(self, written: bytes) -> tuple[str | None, bytes]:
        """Return the `type` property (None if the reply type is not a union) and the body of a reply.

        :param written: result of `write`.
        """
        if not self._members:
            return None, written
        first, _, body = written.partition(b"\n")
        name = first.decode()
        return (name if name in self._members else None), body

    def read(self, answer: RawReply) -> Any:
        """Decode a reply and return its value.

        :raises RemoteError: if the reply is an error, or is not of the reply type.
        """
        kind = str(answer.properties.get("type", ""))
        if kind == ERROR_TYPE:
            raise decode_error(answer.body, self._faults)
        member = self._members.get(kind)
        codec = self._codec if member is None else type_codec(member)
        content_type, body = answer.properties.get("content_type"), answer.body
        content_encoding = answer.properties.get("content_encoding")
        try:
            if not is_plain(content_encoding, content_type):
                body = decode_body(body, content_encoding, content_type)
            if is_msgpack(media_type(content_type)):
                return codec.read_msgpack(body)
            return codec.read_json(body.removeprefix(BOM))
        except ValueError as error:
            raise RemoteError(
                "undecodable_reply",
                f"the reply is not what the request says: {format_validation_error(error)}",
            ) from None


@cache
def reply_codec(kind: type[RequestMessage]) -> ReplyCodec:
    """Return the codec of a request class.

    :raises ConfigError: if two members of a union have the same name, or the class has no reply type.
    """
    reply = kind.reply_type()
    members: dict[str, type] = {}
    if get_origin(reply) in (Union, UnionType):
        for member in get_args(reply):
            if not isinstance(member, type):
                continue
            for name in (name_of(member), *getattr(member, "wire_aliases", ())):
                if name in members:
                    raise ConfigError(f"{kind.__name__}: two replies are called {name!r} on the wire")
                members[name] = member
    return ReplyCodec(type_codec(reply), members, {fault.wire_code: fault for fault in kind.wire_faults})


def name_of(member: type) -> str:
    """Return the name of a member class of a union, which is the `type` property of replies of this class."""
    return member.wire_type if issubclass(member, Message) else snake_case(member.__name__)
