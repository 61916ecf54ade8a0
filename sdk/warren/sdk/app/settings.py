"""Settings of an App: broker, connections, publishing, telemetry, capture, deadlines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from warren.sdk.app.embedded_broker import EmbeddedBroker
from warren.sdk.capture import Capture
from warren.sdk.choices import check_choice, check_whole_number
from warren.sdk.errors import ConfigError
from warren.sdk.rpc.caller import ReplyMode
from warren.sdk.telemetry import Telemetry
from warren.sdk.transport.host_failover import Hosts

StartMode = Literal["wait", "background"]
"""Start of an App while its broker is away. `wait`: it lasts until the broker is there, or fails. `background`: it returns,
and the App connects as soon as it can."""


@dataclass(slots=True)
class Settings:
    """The settings of an App; each run reads them when it starts. The parameters of `App` describe all of them.

    :ivar broker: the brokers to connect to, or one that the App runs in its process.
    :ivar window: largest number of published messages that wait for their confirm.
    :ivar start: `wait` for the broker, or `background`.
    :ivar connect_timeout: seconds for the first connection, and for the broker's `basic.consume-ok` for every consumer;
        infinite for no limit.
    :ivar grace: seconds that running handlers get to finish when the App stops.
    :ivar first_retry: seconds; upper bound of the random wait before the first attempt to
        reconnect. It doubles with each further attempt.
    :ivar longest_retry: seconds; largest value of that upper bound.
    :ivar stall_threshold: seconds for which a handler may block the event loop before that is logged; None for no limit.
    :raises ConfigError: if a setting is out of its range.
    """

    broker: Hosts | EmbeddedBroker
    name: str
    window: int
    replies: ReplyMode
    telemetry: Telemetry
    capture: Capture | None
    start: StartMode
    connect_timeout: float
    grace: float
    first_retry: float
    longest_retry: float
    stall_threshold: float | None

    def __post_init__(self) -> None:
        check_choice("replies", self.replies, ReplyMode)
        check_choice("start", self.start, StartMode)
        check_whole_number("window", self.window)
        if self.stall_threshold is not None and self.stall_threshold <= 0:
            raise ConfigError(
                f"stall_threshold must be above 0, not {self.stall_threshold:g}: None turns the watchdog off"
            )
