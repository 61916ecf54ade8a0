"""Budget of file descriptors: how many connections a broker may have, so that its store and its operators never lack one.

https://www.rabbitmq.com/docs/networking#open-file-handle-limit
"""

from __future__ import annotations

from typing import Final, NamedTuple

from warren.core.operating_system.descriptors import count_open_descriptors, descriptor_limit

RESERVE: Final = 128
"""Descriptors that are kept from connections, on top of those that are open when the broker starts.

The log, the files of streams that are written to (32), reads, indexes, compaction and definitions take up to 64; control
connections 32; listeners, certificate files, the event loop and name resolution most of the rest.
"""
LEAST_SHARE: Final = 4
"""Divisor of the limit of descriptors: connections get at least this part of it, however small it is."""
HTTP_CONNECTIONS: Final = 128
"""Most connections of an HTTP server."""
HTTP_SHARE: Final = 10
"""Divisor of the limit of descriptors: an HTTP server gets at most this part of it."""


class DescriptorBudget(NamedTuple):
    """Division of the file descriptors of this process."""

    limit: int
    """Descriptors that the system lets this process have open (RLIMIT_NOFILE)."""
    reserved: int
    """Descriptors for everything but AMQP connections."""
    http_connections: int = HTTP_CONNECTIONS
    """Largest number of connections of each HTTP server, which are among the reserved ones."""

    @property
    def connections(self) -> int:
        """Largest number of connections: those that are open, and those that are being opened."""
        return self.limit - self.reserved


def descriptor_budget(http_servers: int) -> DescriptorBudget:
    """Return the budget of this process, by its limit and the descriptors that are open now.

    :param http_servers: servers of the HTTP API and of the Prometheus endpoint.
    """
    limit = descriptor_limit()
    http = max(min(HTTP_CONNECTIONS, limit // HTTP_SHARE), 1)
    reserved = count_open_descriptors() + RESERVE + http_servers * http
    return DescriptorBudget(limit, min(reserved, limit - limit // LEAST_SHARE), http)
