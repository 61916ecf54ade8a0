"""Configuration of a broker: one immutable value, validated when it is created."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from warren.broker.access.access_service.access_service_config import AccessServiceConfig
from warren.broker.access.login_backends import check_backends
from warren.broker.access.oauth2.oauth2_config import OAuth2Config
from warren.broker.access.sasl_authentication import MECHANISMS
from warren.broker.configuration.sizes import parse_size
from warren.broker.connection.handshake import FRAME_MIN
from warren.broker.connection.listen_address import Address
from warren.broker.connection.tls import TlsConfig
from warren.broker.model.message_interceptors import TIMESTAMPS
from warren.broker.model.rabbitmq_versions import BEHAVIOUR_BY_VERSION
from warren.broker.model.server_names import LONGEST_NAME
from warren.broker.process_memory import MIN_MEMORY_LIMIT, available_memory
from warren.broker.store.log.group_commit import Sync


@dataclass(frozen=True, kw_only=True)
class BrokerConfig:
    """Configuration of a broker.

    :param data_dir: folder that stores durable definitions and messages. In Python, None keeps everything in memory;
        `warren broker` uses the default data folder of the user unless it runs with `--in-memory`.
    :param host: address to listen at; loopback by default.
    :param port: port to listen at; 0 is any free port.
    :param listeners: all addresses to listen at without TLS, as `host:port` or a port; replaces `host` and `port`.
    :param tls: addresses to listen at with TLS, and its options.
    :param proxy_protocol: each connection must begin with a PROXY protocol header, which a load balancer sends.
    :param mechanisms: SASL mechanisms that clients may use: PLAIN, AMQPLAIN, EXTERNAL (client certificate), ANONYMOUS.
    :param anonymous_user: user of ANONYMOUS clients.
    :param auth_backends: back ends of logins, asked one after the other: `internal` (the broker's users), `oauth2` (access
        tokens), `http` (an access-control service). `http:internal` logs in with one, and takes permissions of the other.
    :param oauth2: settings of the back end `oauth2`.
    :param auth_http: settings of the back end `http`.
    :param auth_cache_ttl: milliseconds for which answers of the access-control service are kept.
    :param users: passwords by user name of the first users: administrators with all permissions on the default virtual
        host. They are created at the first start; later the users in the data folder apply.
    :param default_vhost: name of the first virtual host, created at the first start.
    :param loopback_users: users that may connect from loopback addresses only.
    :param max_connections: largest number of open connections; None is no limit.
    :param max_unopened_connections: largest number of connections that are being opened; at this bound, the oldest one of
        the address that has the most of them is closed for a new one, after it had a second. The descriptors that this
        process may open are another bound.
    :param max_unopened_per_address: largest number of connections that one client address may be opening; a further one
        closes the oldest. None is no bound but the one above; 64 bits of an IPv6 address count as one.
    :param login_failure_delay: seconds until a refused login is answered; the delay doubles with each further one of the
        same address within a minute, up to 5 s. 0 answers at once, as RabbitMQ does.
    :param channel_max: largest number of channels of a connection.
    :param frame_max: largest frame in bytes.
    :param heartbeat: heartbeat in seconds that the broker proposes; 0 is none.
    :param tcp_keepalive: seconds without input after which the system probes whether a client is still there (TCP
        keepalive); after six probes without an answer, one each 10 s, the connection ends. 0 is off, as in RabbitMQ.
    :param send_timeout: seconds after which the connection of a client that has stopped reading, and so leaves output
        unread, is ended, also if it sends heartbeats; 0 is never.
    :param max_message_size: largest message body in bytes (RabbitMQ 4: 16 MiB).
    :param handshake_timeout: seconds from the TCP connection to connection.open. Half of them is the time for a TLS
        handshake over HTTP, for the head of a request, and for a pause between two requests.
    :param consumer_timeout: milliseconds that a delivered message may stay unacknowledged, unless its queue or consumer sets
        `x-consumer-timeout`; then a consumer of a quorum queue is suspended, and any other channel closed with 406. 0 is no
        limit (RabbitMQ: 30 minutes).
    :param immediate: reaction to a publish with `immediate`: `refuse` closes the connection with 540, as RabbitMQ does;
        `honour` routes it to queues with consumers only, and returns it (313) if there are none.
    :param timestamps: when the broker sets the property `timestamp` and the header `timestamp_in_ms` of a publish: `off`,
        `missing` (if the publisher has not set them) or `always`.
    :param memory_limit: memory that the broker may use: bytes, a size such as `"400MB"`, or a fraction (up to 1.0) of the
        memory that is available to this process (the limit of its control group, else that of the machine).
    :param memory_alarm: block publishers while the resident memory of this process exceeds `memory_limit`. It is on in
        `warren broker`, and off in a broker that shares its process with an application.
    :param disk_free_limit: block publishers while the file system of the data folder has less free space: bytes, or a size.
    :param stall_threshold: milliseconds from which on a turn of the event loop, in which no other client is served, is
        counted and logged as a stall; 0 is never. It is 100 in `warren broker`; an embedded broker measures nothing.
    :param control_socket: path of the socket for `warren ctl`; by default `control.sock` in the data folder.
    :param management_port: port of the HTTP API for management; 0 is any free port, `none` is no HTTP API. `warren broker`
        listens at 15672 if its AMQP port is 5672; with another AMQP port it has no HTTP API unless this is set.
    :param management_host: address of the HTTP API; loopback by default.
    :param management_tls: serve the HTTP API with TLS, with the certificate of `tls_certificate`.
    :param management_page: serve the management page at `/` of the HTTP API, too.
    :param prometheus_port: port of the Prometheus endpoint; 0 is any free port, `none` is no endpoint. `warren broker`
        listens at 15692 if its AMQP port is 5672; with another AMQP port it has no endpoint unless this is set.
    :param prometheus_host: address of the Prometheus endpoint, which asks for no login; loopback by default.
    :param prometheus_tls: serve the Prometheus endpoint with TLS, with the certificate of `tls_certificate`.
    :param audit: where changes are recorded, with user, source, surface, object and outcome: `log`, `none`, or the path of a
        file of JSON lines.
    :param audit_amqp: record declarations, deletions, bindings and purges of AMQP clients, too.
    :param capture_events: stream that receives the life-cycle events of messages (published, delivered, acknowledged and
        so on): `STREAM` for the default virtual host or `STREAM@VHOST`; several for several virtual hosts. It is declared
        if it does not exist.
    :param opentelemetry: export spans of the messages whose headers have a sampled trace context: enqueue, deliver,
        dead_letter, expire and drop. The variables `OTEL_...` of the environment configure the exporter.
    :param opentelemetry_endpoint: URL of the OTLP collector, such as `http://127.0.0.1:4318`; empty for that of
        `OTEL_EXPORTER_OTLP_ENDPOINT`.
    :param event_exchange: virtual host in which the exchange `amq.rabbitmq.event` gets the broker's events, such as
        `queue.created`; empty for none.
    :param load_definitions: file with definitions in RabbitMQ's format, or folder of such files, imported at every start.
        If they contain users, the first users are not created.
    :param accept_data_loss: start although definitions of the data folder are lost or older than its messages. Messages of
        unknown queues go to durable queues `recovered-NUMBER` of the default virtual host. Without such a loss it
        changes nothing.
    :param sync: when the log is synced to disk: `"batch"` (each batch before its confirms, acknowledgements within 200 ms),
        `"always"` (also each acknowledgement) or `"off"` (never: confirmed messages survive a killed process, but not a
        power cut).
    :param compat: RabbitMQ version whose reply codes and texts are used where versions differ: `"4.3"` or `"3.10"`.
    :param strict: refuse operations that RabbitMQ 4.3 refuses; if off, carry them out, and log each kind once.
    """

    data_dir: Path | None = None
    host: str = "127.0.0.1"
    port: int = 0
    listeners: tuple[str, ...] | None = None
    tls: TlsConfig = field(default_factory=TlsConfig)
    proxy_protocol: bool = False
    mechanisms: tuple[str, ...] = ("PLAIN", "AMQPLAIN")
    anonymous_user: str = ""
    auth_backends: tuple[str, ...] = ("internal",)
    oauth2: OAuth2Config = field(default_factory=OAuth2Config)
    auth_http: AccessServiceConfig = field(default_factory=AccessServiceConfig)
    auth_cache_ttl: int = 15_000
    users: Mapping[str, str] = field(default_factory=lambda: {"guest": "guest"}, repr=False)
    default_vhost: str = "/"
    loopback_users: tuple[str, ...] = ("guest",)
    max_connections: int | None = None
    max_unopened_connections: int = 4096
    max_unopened_per_address: int | None = None
    login_failure_delay: float = 1.0
    channel_max: int = 2047
    frame_max: int = 131072
    heartbeat: int = 60
    tcp_keepalive: int = 60
    send_timeout: float = 30.0
    max_message_size: int = 16 * 1024 * 1024
    handshake_timeout: float = 10.0
    consumer_timeout: int = 0
    immediate: str = "refuse"
    timestamps: str = "off"
    memory_limit: int | float | str = 0.4
    memory_alarm: bool = False
    disk_free_limit: int | str = "50MB"
    stall_threshold: int = 0
    control_socket: Path | None = None
    management_port: int | None = None
    management_host: str = "127.0.0.1"
    management_tls: bool = False
    management_page: bool = True
    prometheus_port: int | None = None
    prometheus_host: str = "127.0.0.1"
    prometheus_tls: bool = False
    audit: str = "log"
    audit_amqp: bool = False
    capture_events: tuple[str, ...] = ()
    opentelemetry: bool = False
    opentelemetry_endpoint: str = ""
    event_exchange: str = ""
    load_definitions: Path | None = None
    accept_data_loss: bool = False
    sync: str = "batch"
    compat: str = "4.3"
    strict: bool = False

    def __post_init__(self) -> None:
        for name in self.mechanisms:
            if name not in MECHANISMS:
                raise ValueError(f"mechanisms has {name!r}; the mechanisms are {', '.join(MECHANISMS)}")
        if not self.audit:
            raise ValueError("audit is empty; it must be none, log, or the path of a file")
        check_backends(self.auth_backends, self.oauth2)
        if not self.addresses and not self.tls_addresses:
            raise ValueError("listeners is empty, and there are no tls_listeners, so no client could connect")
        for name, least, most in (
            ("port", 0, 65535),
            ("max_unopened_connections", 1, 2**31 - 1),
            ("channel_max", 1, 65535),
            ("frame_max", FRAME_MIN, 2**31 - 1),
            ("heartbeat", 0, 65535),
            ("tcp_keepalive", 0, 32767),
            ("consumer_timeout", 0, 2**53),
            ("stall_threshold", 0, 3_600_000),
            ("auth_cache_ttl", 1000, 86_400_000),
            ("max_message_size", 1, 512 * 1024 * 1024),
            ("memory_bytes", MIN_MEMORY_LIMIT, 2**63 - 1),
            ("disk_free_bytes", 0, 2**63 - 1),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                name = name.replace("_bytes", "_limit")
                raise ValueError(f"{name} is {value}; it must be between {least} and {most}")
        for name in ("management", "prometheus"):
            port = getattr(self, f"{name}_port")
            if port is not None and not 0 <= port <= 65535:
                raise ValueError(f"{name}_port is {port}; it must be between 0 and 65535")
            if getattr(self, f"{name}_tls") and (self.tls.certificate is None or self.tls.key is None):
                raise ValueError(f"{name}_tls is set; it needs tls_certificate and tls_key")
        if self.max_unopened_per_address is not None and self.max_unopened_per_address < 1:
            raise ValueError(
                f"max_unopened_per_address is {self.max_unopened_per_address}; it must be at least 1"
            )
        if not 0 <= self.login_failure_delay <= 60:
            raise ValueError(
                f"login_failure_delay is {self.login_failure_delay}; it must be between 0 and 60"
            )
        if not 0 <= self.send_timeout <= 86400:
            raise ValueError(f"send_timeout is {self.send_timeout}; it must be between 0 and 86400")
        for name, choices in (("immediate", ("refuse", "honour")), ("timestamps", TIMESTAMPS)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(choices)}")

        size = len(self.default_vhost.encode("utf-8", "surrogateescape"))
        if not 1 <= size <= LONGEST_NAME:
            raise ValueError(f"default_vhost has {size} bytes; it must have from 1 to {LONGEST_NAME}")
        if len(self.captured) < len(self.capture_events):
            raise ValueError("capture_events names two streams for one virtual host")
        if self.sync not in (modes := [mode.value for mode in Sync]):
            raise ValueError(f"sync is {self.sync!r}; it must be one of {', '.join(modes)}")
        if self.compat not in BEHAVIOUR_BY_VERSION:
            raise ValueError(
                f"compat is {self.compat!r}; it must be one of {', '.join(BEHAVIOUR_BY_VERSION)}"
            )

    @property
    def addresses(self) -> list[Address]:
        """Addresses to listen at without TLS."""
        if self.listeners is None:
            return [Address(self.host, self.port)]
        return [Address.parse("listeners", text, self.host) for text in self.listeners]

    @property
    def tls_addresses(self) -> list[Address]:
        """Addresses to listen at with TLS."""
        return [Address.parse("tls_listeners", text, self.host) for text in self.tls.listeners]

    @property
    def control_path(self) -> Path | None:
        """Path of the control socket; None if the broker opens none."""
        if self.control_socket is not None or self.data_dir is None:
            return self.control_socket
        return self.data_dir / "control.sock"

    @property
    def captured(self) -> dict[str, str]:
        """Names of the streams that receive life-cycle events of messages, by virtual host, from `capture_events`.

        :raises ValueError: if an item of `capture_events`, `STREAM` or `STREAM@VHOST`, has no valid stream name
        """
        found = {}
        for wanted in self.capture_events:
            stream, _, vhost = wanted.partition("@")
            if not stream or len(stream.encode()) > 255 or stream.startswith("amq."):
                raise ValueError(f"capture_events is {wanted!r}; it must be STREAM or STREAM@VHOST")
            found[vhost or self.default_vhost] = stream
        return found

    @property
    def memory_bytes(self) -> int:
        """Value of `memory_limit` in bytes; a fraction refers to the memory available to this process."""
        return memory_bytes(self.memory_limit)

    @property
    def disk_free_bytes(self) -> int:
        """Value of `disk_free_limit` in bytes."""
        limit = self.disk_free_limit
        if not isinstance(limit, str):
            return int(limit)
        try:
            return parse_size(limit)
        except ValueError as error:
            raise ValueError(f"disk_free_limit: {error}") from None


def memory_bytes(limit: int | float | str) -> int:
    """Return a memory limit in bytes.

    :param limit: bytes, a size such as "400MB", or a fraction of the available memory
    :raises ValueError: if it is neither a size nor a fraction
    """
    if isinstance(limit, str):
        try:
            limit = float(limit) if "." in limit else parse_size(limit)
        except ValueError:
            raise ValueError(
                f"memory_limit is {limit!r}; it must be bytes, a size such as 400MB, or a fraction such as 0.4"
            ) from None
    if isinstance(limit, float):
        if not 0 < limit <= 1:
            raise ValueError(f"memory_limit is {limit}; as a fraction it must be above 0 and at most 1")
        return int(limit * available_memory())
    return limit
