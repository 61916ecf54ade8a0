"""Attacks, the decorator that defines them, and their target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from tests.support.http_client import HttpApi
from tests.support.raw_client import RawClient


@dataclass(frozen=True)
class Target:
    """Addresses of a broker with the user `guest`, who may do everything.

    :param amqp: AMQP URL
    :param http: base URL of the HTTP API
    """

    amqp: str
    http: str

    def connect(self) -> RawClient:
        """Return a connection with channel 1 open."""
        return RawClient(self.amqp).connect().open()

    @property
    def api(self) -> HttpApi:
        return HttpApi(self.http)


@dataclass(frozen=True)
class Attack:
    """Attempt of a peer to stop a broker, or to delay its other clients.

    :param given: what the peer gives too much, too deep, too slow or too often of
    :param logged_in: True if the peer is a user of the broker
    :param run: does it, checks the answers, and ends all its connections; what it declared is deleted again
    """

    name: str
    protocol: Literal["amqp", "http"]
    given: str
    logged_in: bool
    run: Callable[[Target], None]


ATTACKS: Final[list[Attack]] = []
"""All attacks, in the order of their definition."""


def attack(
    protocol: Literal["amqp", "http"], given: str, *, logged_in: bool = True
) -> Callable[[Callable[[Target], None]], Callable[[Target], None]]:
    """Return a decorator that makes a function an attack; its name says what it does."""

    def add(run: Callable[[Target], None]) -> Callable[[Target], None]:
        name = run.__name__.replace("_", " ")
        ATTACKS.append(Attack(name, protocol, given, logged_in, run))
        return run

    return add
