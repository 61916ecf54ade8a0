"""Choice of an App's broker from its URL, or from the environment variable `AMQP_URL`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from warren.sdk.app.embedded_broker import EmbeddedBroker, Storage
from warren.sdk.errors import ConfigError
from warren.sdk.transport.host_failover import HostOrder, Hosts

VARIABLE = "AMQP_URL"


def choose_broker(
    url: str | Sequence[str] | None, order: HostOrder = "random", *, unnamed: Storage = Storage.ASSUMED
) -> Hosts | EmbeddedBroker:
    """Return the brokers to connect to, or the embedded broker that the URL chooses.

    :param url: one URL, several with commas between them, or a list; None for the value of `AMQP_URL`. If that variable
        is not set, the embedded broker is in memory.
    :param order: order in which several URLs are tried.
    :param unnamed: storage of that embedded broker: `Storage.MEMORY` if the App is part of a test.
    :raises ConfigError: if the URL or the variable is empty or wrong.
    """
    if url is None:
        url = os.environ.get(VARIABLE)
        if url is None:
            return EmbeddedBroker(unnamed)
        if not url.strip():
            raise ConfigError(
                f"{VARIABLE} is empty: set it to amqp://user:password@host/vhost, or to memory:// for a broker in this"
                " process that loses its messages when it ends, or unset it"
            )
    elif isinstance(url, str) and not url.strip():
        raise ConfigError("the broker's URL is empty: App('amqp://user:password@host/vhost')")
    return EmbeddedBroker.parse(url) or Hosts.parse(url, order)
