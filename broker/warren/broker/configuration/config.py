"""The broker's configuration: one frozen value, checked when it is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from warren.broker.access.sasl_authentication import MECHANISMS
from warren.broker.channel.message_interceptors import TIMESTAMPS
from warren.broker.configuration.sizes import parse_size
from warren.broker.connection.handshake import FRAME_MIN
from warren.broker.connection.listen_address import Address
from warren.broker.connection.tls import TlsConfig
from warren.broker.model.rabbitmq_versions import BEHAVIOUR_BY_VERSION
from warren.broker.process_memory import MIN_MEMORY_LIMIT, available_memory
from warren.broker.store.log.group_commit import Sync


@dataclass(frozen=True, kw_only=True)
class BrokerConfig:
    """How a broker runs.

    :param data_dir: where durable definitions and messages are kept; without it the broker lives in memory only.
    :param host: the address to listen at. Loopback unless it is said otherwise.
    :param port: the port; 0 takes any free one.
    :param listeners: all addresses to listen at without TLS, as `host:port` or a port, in the place of `host` and `port`.
    :param tls: addresses to listen at with TLS, and how.
    :param proxy_protocol: each connection begins with a header of the PROXY protocol, which a load balancer sends.
    :param mechanisms: how clients may log in: of PLAIN, AMQPLAIN, EXTERNAL (by their certificate) and ANONYMOUS.
    :param anonymous_user: the user that an ANONYMOUS client is.
    :param users: passwords by user name: the first users, administrators with every permission on the default virtual host.
        They are made once; after that the data folder's own count.
    :param default_vhost: the first virtual host; the same.
    :param loopback_users: who may come from loopback addresses only.
    :param max_connections: connections that may be open at a time; None is no limit.
    :param channel_max: channels a connection may open.
    :param frame_max: largest frame in bytes.
    :param heartbeat: seconds that the server proposes; 0 is none.
    :param max_message_size: largest body in bytes (RabbitMQ 4: 16 MiB).
    :param handshake_timeout: seconds from connecting to connection.open.
    :param consumer_timeout: milliseconds that a delivered message may stay unacknowledged, unless its queue or consumer says
        otherwise (`x-consumer-timeout`); then its channel is closed with 406. 0 is for ever (RabbitMQ: 30 minutes).
    :param immediate: `refuse` answers a publish with `immediate` with 540, as RabbitMQ does; `honour` gives it to queues
        with consumers only, and returns it (313) if there are none.
    :param timestamps: whether a message that comes in is stamped with the property `timestamp` and the header
        `timestamp_in_ms`: `off`, `missing` (where its publisher has not) or `always`.
    :param memory_limit: how much memory the broker may take: bytes, a size such as `"400MB"`, or a fraction (up to 1.0) of
        what there is for this process (its control group's limit, else the machine's memory).
    :param memory_alarm: publishers are blocked while more than `memory_limit` of this process is resident. `warren broker`
        does so; a broker that shares its process with an application cannot know whose the memory is.
    :param disk_free_limit: publishers are blocked while the data folder's file system has less free: bytes, or a size.
    :param control_socket: where `warren ctl` finds the broker; `control.sock` in the data folder if there is one.
    :param capture_events: what happens to messages (published, delivered, acknowledged, expired and so on) is written as
        events to this stream: `STREAM` for the default virtual host or `STREAM@VHOST`, several for several virtual hosts. It
        is made if it is not there.
    :param load_definitions: a file of definitions in RabbitMQ's format, or a folder of them, taken in at every start. The
        first users are not made if they bring some.
    :param sync: when the log is synced: `"batch"` (each batch before its confirms, acknowledgements within 200 ms),
        `"always"` (acknowledgements do not wait either) or `"off"` (never: what was confirmed survives a killed process and
        not a power cut).
    :param compat: the RabbitMQ whose reply codes and texts are given where versions differ: `"4"` or `"3.10"`.
    :param strict: refuse what RabbitMQ 4.3 refuses; without it, such a thing is done and logged once.
    """

    data_dir: Path | None = None
    host: str = "127.0.0.1"
    port: int = 0
    listeners: tuple[str, ...] | None = None
    tls: TlsConfig = field(default_factory=TlsConfig)
    proxy_protocol: bool = False
    mechanisms: tuple[str, ...] = ("PLAIN", "AMQPLAIN")
    anonymous_user: str = ""
    users: Mapping[str, str] = field(default_factory=lambda: {"guest": "guest"}, repr=False)
    default_vhost: str = "/"
    loopback_users: tuple[str, ...] = ("guest",)
    max_connections: int | None = None
    channel_max: int = 2047
    frame_max: int = 131072
    heartbeat: int = 60
    max_message_size: int = 16 * 1024 * 1024
    handshake_timeout: float = 10.0
    consumer_timeout: int = 0
    immediate: str = "refuse"
    timestamps: str = "off"
    memory_limit: int | float | str = 0.4
    memory_alarm: bool = False
    disk_free_limit: int | str = "50MB"
    control_socket: Path | None = None
    capture_events: tuple[str, ...] = ()
    load_definitions: Path | None = None
    sync: str = "batch"
    compat: str = "4"
    strict: bool = False

    def __post_init__(self) -> None:
        for name in self.mechanisms:
            if name not in MECHANISMS:
                raise ValueError(f"mechanisms has {name!r}; there are: {', '.join(MECHANISMS)}")
        if not self.addresses and not self.tls_addresses:
            raise ValueError("listeners is empty, and there are no tls_listeners: nobody could connect")
        for name, least, most in (
            ("port", 0, 65535),
            ("channel_max", 1, 65535),
            ("frame_max", FRAME_MIN, 2**31 - 1),
            ("heartbeat", 0, 65535),
            ("consumer_timeout", 0, 2**53),
            ("max_message_size", 1, 512 * 1024 * 1024),
            ("memory_bytes", MIN_MEMORY_LIMIT, 2**63 - 1),
            ("disk_free_bytes", 0, 2**63 - 1),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                name = name.replace("_bytes", "_limit")
                raise ValueError(f"{name} is {value}; it has to be between {least} and {most}")
        for name, choices in (("immediate", ("refuse", "honour")), ("timestamps", TIMESTAMPS)):
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}; it has to be one of {', '.join(choices)}"
                )

        if len(self.captured) < len(self.capture_events):
            raise ValueError("capture_events names two streams for one virtual host")
        if self.sync not in (modes := [mode.value for mode in Sync]):
            raise ValueError(f"sync is {self.sync!r}; it has to be one of {', '.join(modes)}")
        if self.compat not in BEHAVIOUR_BY_VERSION:
            raise ValueError(
                f"compat is {self.compat!r}; it has to be one of {', '.join(BEHAVIOUR_BY_VERSION)}"
            )

    @property
    def addresses(self) -> list[Address]:
        """Where it listens without TLS."""
        if self.listeners is None:
            return [Address(self.host, self.port)]
        return [Address.parse("listeners", text, self.host) for text in self.listeners]

    @property
    def tls_addresses(self) -> list[Address]:
        """Where it listens with TLS."""
        return [Address.parse("tls_listeners", text, self.host) for text in self.tls.listeners]

    @property
    def control_path(self) -> Path | None:
        """Where the control socket is; None if there is none."""
        if self.control_socket is not None or self.data_dir is None:
            return self.control_socket
        return self.data_dir / "control.sock"

    @property
    def captured(self) -> dict[str, str]:
        """The stream of each virtual host whose events are captured."""
        found = {}
        for wanted in self.capture_events:
            stream, _, vhost = wanted.partition("@")
            if not stream or len(stream.encode()) > 255 or stream.startswith("amq."):
                raise ValueError(f"capture_events is {wanted!r}; it has to be STREAM or STREAM@VHOST")
            found[vhost or self.default_vhost] = stream
        return found

    @property
    def memory_bytes(self) -> int:
        """`memory_limit` in bytes, on this machine."""
        return memory_bytes(self.memory_limit)

    @property
    def disk_free_bytes(self) -> int:
        """`disk_free_limit` in bytes."""
        limit = self.disk_free_limit
        if not isinstance(limit, str):
            return int(limit)
        try:
            return parse_size(limit)
        except ValueError as error:
            raise ValueError(f"disk_free_limit: {error}") from None


def memory_bytes(limit: int | float | str) -> int:
    """A memory limit in bytes.

    :raises ValueError: if it is neither a size nor a fraction.
    """
    if isinstance(limit, str):
        try:
            limit = float(limit) if "." in limit else parse_size(limit)
        except ValueError:
            raise ValueError(
                f"memory_limit is {limit!r}; it has to be bytes, a size such as 400MB, or a fraction such as 0.4"
            ) from None
    if isinstance(limit, float):
        if not 0 < limit <= 1:
            raise ValueError(f"memory_limit is {limit}; as a fraction it has to be above 0 and at most 1")
        return int(limit * available_memory())
    return limit
