"""Ways to ask a broker in this process for an operation: over AMQP, over the HTTP API and at the control socket."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pamqp import commands
from pamqp.base import Frame

from tests.support.blocking_client import Channel, Closed, Connection
from tests.support.http_client import HttpApi
from tests.support.in_process_broker import PATIENCE, InProcessBroker
from tests.support.raw_client import encoded
from warren.core.control_endpoint import connect

AMQP: Final = "amqp"
HTTP: Final = "http"
CONTROL: Final = "control socket"

STATUSES: Final = {403: 401, 404: 404}
"""Statuses of the HTTP API by reply code; that of all others is 400."""


class Refusal(NamedTuple):
    """Refusal of an operation: the status that the HTTP API has for it, and RabbitMQ's text without the code's name.

    `warren ctl` has no status, and the HTTP API no text for what is missing or not allowed.
    """

    status: int | None
    text: str | None

    def agrees(self, other: Refusal) -> bool:
        """Return whether two refusals do not contradict each other."""
        return all(None in pair or pair[0] == pair[1] for pair in zip(self, other, strict=True))


@dataclass(frozen=True)
class Asked:
    """An operation, as each surface asks for it; None where a surface cannot."""

    amqp: tuple[Frame, ...] | Callable[[Channel], None]
    http: tuple[str, str, Any]
    control: tuple[str, dict[str, Any]] | None = None


class Surfaces:
    """Surfaces of a broker in this process, which has a data folder and the HTTP API."""

    def __init__(self, broker: InProcessBroker) -> None:
        assert broker.broker is not None
        self.broker = broker
        self.api = HttpApi(f"http://{broker.broker.management_addresses[0]}")
        self.is_answered = False
        """True when an operation over AMQP is answered. The end of its connection waits for its bulk work."""

    def ask(self, surface: str, asked: Asked, user: str) -> Refusal | None:
        """Ask for an operation over one surface; return its refusal, if it is refused."""
        if surface == AMQP:
            return self._ask_amqp(asked, user)
        return self._ask_http(asked, user) if surface == HTTP else self._ask_control(asked)

    def _ask_amqp(self, asked: Asked, user: str) -> Refusal | None:
        connection = Connection(self.broker.url.replace("guest:guest", f"{user}:{user}"))
        try:
            channel = connection.channel()
            if callable(asked.amqp):
                asked.amqp(channel)
            else:
                for method in asked.amqp:
                    connection.raw.send_bytes(encoded(method, channel.number))
                    channel.next_method(answer_to(method))
        except Closed as error:
            connection.abort()
            return Refusal(STATUSES.get(error.code, 400), error.text.partition(" - ")[2])
        self.is_answered = True
        connection.close()
        return None

    def _ask_http(self, asked: Asked, user: str) -> Refusal | None:
        method, path, body = asked.http
        answer = HttpApi(self.api.base, user, user).ask(method, path, body)
        if answer.status < 400:
            return None
        text = answer.body["reason"] if answer.status == 400 else None
        return Refusal(answer.status, text and text.removeprefix("540 "))

    def _ask_control(self, asked: Asked) -> Refusal | None:
        assert asked.control is not None
        assert self.broker.data_dir is not None
        verb, arguments = asked.control
        with connect(self.broker.data_dir / "control.sock", PATIENCE) as line:
            line.sendall(json.dumps({"verb": verb, "arguments": dict(arguments)}).encode() + b"\n")
            with line.makefile() as replies:
                reply = json.loads(replies.readline())
        return Refusal(None, reply["error"]) if "error" in reply else None


def answer_to(method: Frame) -> type[Frame]:
    """Return the class of the answer to a method."""
    kind, name = method.valid_responses[0].split(".")
    found: type[Frame] = getattr(getattr(commands, kind), name)
    return found
