"""Methods of AMQP with any names that a broker allows.

pamqp refuses names of exchanges and queues with other characters than letters, digits and `-_.:@#,/+ `. AMQP 0-9-1 demands
that of a client, but no broker and few other clients do: names with `;`, `*`, `[`, quotes or letters such as `ö` are in use.
"""

from __future__ import annotations

from pamqp import commands
from pamqp.base import Frame


class _AnyName(Frame):
    def validate(self) -> None:
        """Check nothing: the broker checks the names, and the encoding their length."""


class ExchangeDeclare(_AnyName, commands.Exchange.Declare):
    """`exchange.declare`."""


class ExchangeBind(_AnyName, commands.Exchange.Bind):
    """`exchange.bind`."""


class QueueDeclare(_AnyName, commands.Queue.Declare):
    """`queue.declare`."""


class QueueBind(_AnyName, commands.Queue.Bind):
    """`queue.bind`."""


class BasicConsume(_AnyName, commands.Basic.Consume):
    """`basic.consume`."""


__all__ = ["BasicConsume", "ExchangeBind", "ExchangeDeclare", "QueueBind", "QueueDeclare"]
