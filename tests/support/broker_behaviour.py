"""Intended differences between brokers, by the server properties of the broker under test.

Warren follows RabbitMQ 4.x. The same tests run against a RabbitMQ 3.x, which judges everything that is not named here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pamqp.common import FieldTable


class Behaviour(NamedTuple):
    """Behaviour of the broker under test."""

    product: str
    version: tuple[int, ...]
    """Version of RabbitMQ that the broker is or follows."""

    @property
    def is_warren(self) -> bool:
        return self.product == "Warren"

    def unknown_exchange_type(self, kind: str) -> tuple[str, int, str]:
        """Return scope, code and text of the error for an unknown exchange type: a channel error since RabbitMQ 4.0."""
        if self.version >= (4, 0):
            return "channel", 406, f"PRECONDITION_FAILED - unknown exchange type '{kind}'"
        # Or "invalid", if the word happens to be one that RabbitMQ's code uses.
        return "connection", 503, f"COMMAND_INVALID - unknown exchange type '{kind}'"

    @property
    def takes_its_own_names(self) -> bool:
        """True if a queue with a server-generated name can be declared again; older versions refuse all `amq.` names."""
        return self.version >= (4, 0)

    @property
    def explains_crashes(self) -> bool:
        """True if input that crashes RabbitMQ's reader or channel (code 541, or no answer) is refused with a reason."""
        return self.is_warren

    @property
    def explains_tuning(self) -> bool:
        """True if limits out of bounds in tune-ok get a reason. RabbitMQ 3.x closes the socket after a pause."""
        return self.is_warren

    @property
    def judges_headers_early(self) -> bool:
        """True if a body that is too large is refused at its header. RabbitMQ waits for the body."""
        return self.is_warren

    @property
    def names_the_permission(self) -> bool:
        """True if a refusal names the missing permission. Older versions name the resource only."""
        return self.version >= (4, 0)


def behaviour(server_properties: FieldTable) -> Behaviour:
    """Return the behaviour for the server properties of connection.start."""
    version = re.findall(r"\d+", str(server_properties["version"]))
    return Behaviour(str(server_properties["product"]), tuple(int(part) for part in version))
