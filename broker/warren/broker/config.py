"""The broker's configuration: one frozen value, checked when it is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from warren.broker.session.handshake import FRAME_MIN


@dataclass(frozen=True, kw_only=True)
class BrokerConfig:
    """How a broker runs.

    :param data_dir: where durable definitions and messages are kept; without it the broker lives in memory only.
    :param host: the address to listen at. Loopback unless it is said otherwise.
    :param port: the port; 0 takes any free one.
    :param users: passwords by user name. `guest` may come from loopback only.
    :param channel_max: channels a connection may open.
    :param frame_max: largest frame in bytes.
    :param heartbeat: seconds that the server proposes; 0 is none.
    :param max_message_size: largest body in bytes (RabbitMQ 4: 16 MiB).
    :param handshake_timeout: seconds from connecting to connection.open.
    """

    data_dir: Path | None = None
    host: str = "127.0.0.1"
    port: int = 0
    users: Mapping[str, str] = field(default_factory=lambda: {"guest": "guest"}, repr=False)
    channel_max: int = 2047
    frame_max: int = 131072
    heartbeat: int = 60
    max_message_size: int = 16 * 1024 * 1024
    handshake_timeout: float = 10.0

    def __post_init__(self) -> None:
        for name, least, most in (
            ("port", 0, 65535),
            ("channel_max", 1, 65535),
            ("frame_max", FRAME_MIN, 2**31 - 1),
            ("heartbeat", 0, 65535),
            ("max_message_size", 1, 512 * 1024 * 1024),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise ValueError(f"{name} is {value}; it has to be between {least} and {most}")
