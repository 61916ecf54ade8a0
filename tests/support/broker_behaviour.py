"""Where brokers differ on purpose: what the one under test does, read off what it says of itself.

Warren follows RabbitMQ 4.x. The same tests run against a RabbitMQ 3.x, which judges everything that is not named here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pamqp.common import FieldTable


class Behaviour(NamedTuple):
    """Of the broker under test."""

    product: str
    version: tuple[int, ...]
    """The RabbitMQ version that it is, or follows."""

    @property
    def is_warren(self) -> bool:
        return self.product == "Warren"

    def unknown_exchange_type(self, kind: str) -> tuple[str, int, str]:
        """What is closed, with which code and text: RabbitMQ 4.0 made it the channel's affair."""
        if self.version >= (4, 0):
            return "channel", 406, f"PRECONDITION_FAILED - unknown exchange type '{kind}'"
        # Or "invalid", if the word happens to be one that RabbitMQ's code uses.
        return "connection", 503, f"COMMAND_INVALID - unknown exchange type '{kind}'"

    @property
    def takes_its_own_names(self) -> bool:
        """A queue whose name the server made may be declared again; older ones refuse any name that begins with `amq.`."""
        return self.version >= (4, 0)

    @property
    def explains_crashes(self) -> bool:
        """What makes RabbitMQ's reader or channel crash (its answer is 541, or none), Warren refuses with a reason."""
        return self.is_warren

    @property
    def explains_tuning(self) -> bool:
        """RabbitMQ 3.x drops the socket, after a pause, where what a client tunes is out of bounds."""
        return self.is_warren

    @property
    def judges_headers_early(self) -> bool:
        """A body that is too large is refused when its header says so; RabbitMQ waits for the body."""
        return self.is_warren

    @property
    def names_the_permission(self) -> bool:
        """A refusal says which permission was missing; older ones say only what access was refused to."""
        return self.version >= (4, 0)


def behaviour(server_properties: FieldTable) -> Behaviour:
    """From what connection.start says."""
    version = re.findall(r"\d+", str(server_properties["version"]))
    return Behaviour(str(server_properties["product"]), tuple(int(part) for part in version))
