"""Phases of a connection, in order: from the protocol header to the closed socket.

A connection only ever moves forward through them (`ConnectionLifecycle.enter`). They are plain integers instead of an
enumeration, because code compiled by mypyc compares integers faster, and it does so for every read of a socket.
"""

from __future__ import annotations

from typing import Final

AWAITING_HEADER: Final = 0
"""The client has connected, and has not sent the protocol header yet."""
STARTING: Final = 1
"""connection.start has been sent; the client has to log in with connection.start-ok."""
TUNING: Final = 2
"""The client has logged in; it has to answer connection.tune."""
OPENING: Final = 3
"""Limits are negotiated; the client has to choose a virtual host with connection.open."""
RUNNING: Final = 4
"""The connection is open: the client may open channels."""
CLOSING: Final = 5
"""The broker has sent connection.close; everything but the client's connection.close-ok is ignored."""
LINGERING: Final = 6
"""The client has closed the connection, which has released all that it had; what the client still sends is discarded."""
CLOSED: Final = 7
"""The connection has ended; its socket is closed, or will be when the output has been written."""

PHASE_NAMES: Final = ("pre_init", "starting", "tuning", "opening", "running", "closing", "closed", "closed")
"""RabbitMQ's name of each phase, by its number, for error texts and the item `state` of `list_connections`."""
