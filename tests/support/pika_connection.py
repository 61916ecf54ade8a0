"""pika's blocking connection, for a test that asks something now and then."""

from __future__ import annotations

import pika

SECONDS = 60.0


def pika_connection(url: str) -> pika.BlockingConnection:
    """Without heartbeats: nobody sends them between a test's questions, however long those are apart."""
    parameters = pika.URLParameters(url)
    parameters.heartbeat = 0
    parameters.socket_timeout = SECONDS
    parameters.stack_timeout = SECONDS
    return pika.BlockingConnection(parameters)
