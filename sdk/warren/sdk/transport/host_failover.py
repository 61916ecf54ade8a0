"""The brokers that an App may connect to, and which of them is next."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Literal

from warren.sdk.errors import ConfigError
from warren.wire.amqp_url import parse_url

HostOrder = Literal["random", "given"]


class Hosts:
    """URLs of one cluster; both connections of an App stay with one of them until an attempt at it fails.

    :param order: `random`, so that many Apps spread over the nodes; `given` where the first is to be preferred.
    """

    def __init__(self, urls: Sequence[str], order: HostOrder = "random") -> None:
        self._urls = list(urls)
        if order == "random":
            random.shuffle(self._urls)
        self._at = 0

    @classmethod
    def parse(cls, urls: str | Sequence[str], order: HostOrder = "random") -> Hosts:
        """From one URL, several with commas between them, or a list.

        :raises ConfigError: if there is none, or one is no AMQP URL.
        """
        # A comma may also be in a password.
        parts = re.split(r"\s*,\s*(?=[a-z]+://)", urls) if isinstance(urls, str) else list(urls)
        if not parts:
            raise ConfigError("an empty list of URLs: name a broker, App('amqp://...')")
        if order not in ("random", "given"):
            raise ConfigError(f"the order of hosts is 'random' or 'given', not {order!r}")
        for url in parts:
            try:
                parse_url(url)
            except ValueError as error:
                raise ConfigError(str(error)) from None
        return cls(parts, order)

    @property
    def current(self) -> str:
        return self._urls[self._at]

    def failed(self, url: str) -> None:
        """An attempt at it has failed: the next is current, unless somebody else has said so already."""
        if url == self.current:
            self._at = (self._at + 1) % len(self._urls)
