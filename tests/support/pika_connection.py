"""pika's blocking connection without heartbeats."""

from __future__ import annotations

import pika

SECONDS = 60.0


def pika_connection(url: str) -> pika.BlockingConnection:
    """Connect without heartbeats, because nobody sends them while the test does other things."""
    parameters = pika.URLParameters(url)
    parameters.heartbeat = 0
    parameters.socket_timeout = SECONDS
    parameters.stack_timeout = SECONDS
    return pika.BlockingConnection(parameters)
