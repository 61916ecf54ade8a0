"""Host failover: the URLs of a cluster, and the one to connect to next."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Literal

from warren.sdk.errors import ConfigError
from warren.sdk.transport.url_parameters import check_parameters
from warren.wire.amqp_url import parse_url

HostOrder = Literal["random", "given"]


class Hosts:
    """The URLs of the nodes of one cluster.

    All connections of an App use the current URL until an attempt to connect to it fails.

    :param order: `random` spreads many Apps over the nodes; `given` prefers the first URL.
    """

    def __init__(self, urls: Sequence[str], order: HostOrder = "random") -> None:
        self._urls = list(urls)
        if order == "random":
            random.shuffle(self._urls)
        self._at = 0

    @classmethod
    def parse(cls, urls: str | Sequence[str], order: HostOrder = "random") -> Hosts:
        """Return the hosts of one URL, of several URLs with commas between them, or of a list.

        :raises ConfigError: if there is none, or one is not an AMQP URL or has a parameter that is unknown or cannot apply.
        """
        # A password may contain a comma.
        parts = re.split(r"\s*,\s*(?=[a-z]+://)", urls) if isinstance(urls, str) else list(urls)
        if not parts:
            raise ConfigError("the list of URLs is empty: name a broker, App('amqp://...')")
        if order not in ("random", "given"):
            raise ConfigError(f"the order of hosts is 'random' or 'given', not {order!r}")
        for url in parts:
            try:
                parse_url(url)
            except ValueError as error:
                raise ConfigError(str(error)) from None
            check_parameters(url)
        return cls(parts, order)

    @property
    def current(self) -> str:
        """The URL of the broker that connections use now, or try next."""
        return self._urls[self._at]

    def failed(self, url: str) -> None:
        """Go on to the next URL after a failed attempt at `url`, unless another connection has done so already."""
        if url == self.current:
            self._at = (self._at + 1) % len(self._urls)
