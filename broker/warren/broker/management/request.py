"""Arguments of a management request, such as `list_queues` or `add_user`, and the error that refuses the request.

Operators send such requests with `warren ctl`. Their arguments are JSON values, read here with a check of their type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from warren.broker.access.audit_log import object_of
from warren.broker.model import operator_errors
from warren.broker.operations.principal import Principal
from warren.core.errors import ExitStatus

if TYPE_CHECKING:
    from warren.broker.connection.broker_node import BrokerNode
    from warren.broker.model.vhost.vhost import VirtualHost

Json: TypeAlias = Any
"""JSON value, as the json module decodes and encodes it."""


class RequestRefused(operator_errors.OperationRefused):
    """Refusal of a request. The text is one line: what is wrong and, unless that is obvious, what to do.

    :param status: exit status of the command that sent the request
    """

    def __init__(self, text: str, status: int = ExitStatus.USAGE) -> None:
        super().__init__(text)
        self.status = int(status)


class Request:
    """Arguments of one management request by name, with a method for each type, such as `text` or `number`.

    Each of these methods raises `RequestRefused`, naming the argument, if the argument has another type, or if it is
    missing and has no default.
    """

    def __init__(self, arguments: dict[str, Json]) -> None:
        self._arguments = arguments

    def object(self) -> dict[str, str]:
        """Return the arguments that name the object of the request, for the audit log."""
        return object_of(self._arguments)

    def has(self, name: str) -> bool:
        return self._arguments.get(name) is not None

    def text(self, name: str, default: str | None = None) -> str:
        value = self._arguments.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise RequestRefused(f"{name} must be a text" if value is not None else f"{name} is missing")
        return value

    def data(self, name: str, default: str | None = None) -> bytes:
        """Return the argument `name`, the name of an AMQP object such as a queue, as bytes.

        The JSON text is encoded as UTF-8; a lone surrogate becomes the byte that it was decoded from.

        :param default: text for a missing argument; None if the argument is required
        """
        return self.text(name, default).encode("utf-8", "surrogateescape")

    def vhost_name(self) -> bytes:
        """Return the name of the virtual host that the request is for; `/` if it names none."""
        return self.data("vhost", "/")

    def principal(self, node: BrokerNode) -> Principal:
        """Return the operator as the principal of operations in the virtual host that the request is for.

        :raises RequestRefused: if there is no virtual host of that name
        """
        declarations = node.vhosts.get(self.vhost_name())
        if declarations is None:
            raise RequestRefused(f"Virtual host '{self.text('vhost', '/')}' does not exist")
        return Principal(declarations, b"", None)

    def vhost(self, node: BrokerNode) -> VirtualHost:
        """Return the virtual host that the request is for.

        :raises RequestRefused: if there is no virtual host of that name
        """
        return self.principal(node).vhost

    def texts(self, name: str) -> list[str]:
        value = self._arguments.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise RequestRefused(f"{name} must be a list of texts")
        return value

    def flag(self, name: str) -> bool:
        value = self._arguments.get(name)
        if value is not None and not isinstance(value, bool):
            raise RequestRefused(f"{name} must be true or false")
        return bool(value)

    def number(self, name: str, default: int) -> int:
        value = self._arguments.get(name)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool):
            raise RequestRefused(f"{name} must be an integer")
        return value

    def value(self, name: str) -> Json:
        """Return the argument `name`, a JSON value of any type."""
        if name not in self._arguments:
            raise RequestRefused(f"{name} is missing")
        return self._arguments[name]
