"""Items (columns) of list_connections and list_channels, under RabbitMQ's names."""

from __future__ import annotations

import ssl
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from warren.broker.connection.tcp_statistics import RECEIVED_AT, SENT_AT, tcp_info
from warren.broker.management.json_values import channel_id, connection_id, name_text, typed_table
from warren.broker.management.request import Json

if TYPE_CHECKING:
    from warren.broker.channel.channel import Channel
    from warren.broker.connection.client_session import ClientSession

SEGMENTS: Final = struct.Struct("=II")
BYTES: Final = struct.Struct("=Q")
SEGMENTS_AT: Final = 152
"""Byte offset of tcpi_data_segs_in and tcpi_data_segs_out in struct tcp_info."""


def address(session: ClientSession, own: bool) -> tuple[str, int | str]:
    """Return (host, port) of the broker's end of a session if `own` is true, else of the client's end."""
    found = session.transport.get_extra_info("sockname" if own else "peername")
    return (str(found[0]), int(found[1])) if isinstance(found, tuple) else ("", "")


def _counted(layout: struct.Struct, at: int, index: int = 0) -> Callable[[ClientSession], Json]:
    def count(session: ClientSession) -> Json:
        info = tcp_info(session.transport.get_extra_info("socket"))
        return layout.unpack_from(info, at)[index] if len(info) >= at + layout.size else ""

    return count


def _protocol(session: ClientSession) -> str:
    """Return the version of the protocol as a term of Erlang: `{0,9,1}` of `AMQP 0-9-1`."""
    version = session.describe().protocol.rpartition(" ")[2]
    return f"{{{version.replace('-', ',')}}}" if version else ""


def _tls(session: ClientSession) -> ssl.SSLObject | None:
    found = session.transport.get_extra_info("ssl_object")
    return found if isinstance(found, ssl.SSLObject) else None


def _cipher(index: int) -> Callable[[ClientSession], Json]:
    def part(session: ClientSession) -> Json:
        tls = _tls(session)
        cipher = tls.cipher() if tls is not None else None
        return str(cipher[index]) if cipher is not None else ""

    return part


def _certificate(part: str) -> Callable[[ClientSession], Json]:
    def shown(session: ClientSession) -> Json:
        tls = _tls(session)
        certificate: Any = tls.getpeercert() if tls is not None else None
        if not certificate:
            return ""
        if part == "validity":
            return f"{certificate.get('notBefore', '')} - {certificate.get('notAfter', '')}"
        # RFC 4514, as OpenSSL prints it: the last part first.
        pairs = [pair for names in certificate.get(part, ()) for pair in names]
        return ",".join(f"{SHORT.get(name, name)}={value}" for name, value in reversed(pairs))

    return shown


SHORT: Final = {
    "commonName": "CN",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "stateOrProvinceName": "ST",
    "localityName": "L",
}

CONNECTION_ITEMS: Final[Mapping[str, Callable[[ClientSession], Json]]] = {
    "pid": connection_id,
    "name": lambda session: session.shown_name(),
    "port": lambda session: address(session, True)[1],
    "host": lambda session: address(session, True)[0],
    "peer_port": lambda session: address(session, False)[1],
    "peer_host": lambda session: address(session, False)[0],
    "ssl": lambda session: _tls(session) is not None,
    "ssl_protocol": _cipher(1),
    "ssl_key_exchange": lambda _: "",
    "ssl_cipher": _cipher(0),
    "ssl_hash": lambda _: "",
    "peer_cert_subject": _certificate("subject"),
    "peer_cert_issuer": _certificate("issuer"),
    "peer_cert_validity": _certificate("validity"),
    "state": lambda session: session.describe().state,
    "channels": lambda session: len(session.channels),
    "protocol": _protocol,
    "auth_mechanism": lambda session: session.describe().mechanism,
    "user": lambda session: name_text(session.user),
    "vhost": lambda session: name_text(session.vhost),
    "timeout": lambda session: session.describe().heartbeat,
    "frame_max": lambda session: session.describe().frame_max,
    "channel_max": lambda session: session.describe().channel_max,
    "client_properties": lambda session: typed_table(session.describe().client_properties),
    "recv_oct": _counted(BYTES, RECEIVED_AT),
    "recv_cnt": _counted(SEGMENTS, SEGMENTS_AT, 0),
    "send_oct": _counted(BYTES, SENT_AT),
    "send_cnt": _counted(SEGMENTS, SEGMENTS_AT, 1),
    "send_pend": lambda session: session.unsent_bytes(),
    "connected_at": lambda session: round(session.connected_at * 1000),
}


def _uncommitted(channel: Channel, publishes: bool) -> int:
    if channel.tx is None:
        return 0
    return len(channel.tx.publishes) if publishes else channel.tx.settled_count()


CHANNEL_ITEMS: Final[Mapping[str, Callable[[Channel], Json]]] = {
    "pid": channel_id,
    "connection": lambda channel: connection_id(channel.connection),
    "name": lambda channel: f"{channel.connection.shown_name()} ({int(channel.number)})",
    "number": lambda channel: int(channel.number),
    "user": lambda channel: name_text(channel.connection.user),
    "vhost": lambda channel: name_text(channel.connection.vhost),
    "transactional": lambda channel: channel.tx is not None,
    "confirm": lambda channel: channel.confirming,
    "consumer_count": lambda channel: len(channel.subscriptions),
    "messages_unacknowledged": lambda channel: len(channel.unacked),
    "messages_uncommitted": lambda channel: _uncommitted(channel, True),
    "acks_uncommitted": lambda channel: _uncommitted(channel, False),
    "messages_unconfirmed": lambda channel: int(channel.confirms.published - channel.confirms.sent),
    "prefetch_count": lambda channel: int(channel.next_prefetch),
    "global_prefetch_count": lambda channel: int(channel.prefetch),
}
