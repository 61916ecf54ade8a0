"""Operations on exchanges: check, declare, delete.

Rules and texts are RabbitMQ's (https://www.rabbitmq.com/amqp-0-9-1-reference#class.exchange).
"""

from __future__ import annotations

from warren.broker.access.permissions import CONFIGURE
from warren.broker.model.exchange.exchange_types import check_type
from warren.broker.model.server_names import refuse_default_exchange
from warren.broker.operations.principal import Principal


def check_exchange(principal: Principal, name: bytes) -> None:
    """Check that an exchange exists, as a passive declaration does.

    :raises AmqpError: 404 if it does not; 403 for the default exchange, or for a user who has no permission on it.
    """
    refuse_default_exchange(name)
    if principal.vhost.compat.checks_passive_declares:
        # Else whether it exists is hidden.
        principal.check_any("exchange", name)
    principal.declarations.exchange(name)


def declare_exchange(
    principal: Principal,
    name: bytes,
    kind: bytes,
    *,
    durable: bool,
    auto_delete: bool,
    internal: bool,
    arguments: bytes,
) -> bool:
    """Declare an exchange; return True if it did not exist before.

    :param kind: type of the exchange.
    :param arguments: encoded field table.
    :raises AmqpError: 403 without the permission or for a reserved name; 406 for an unknown type, invalid arguments, or an
        existing exchange with other properties; 502 for malformed arguments.
    """
    declarations = principal.declarations
    check_type(kind, arguments, declarations.vhost.compat)
    refuse_default_exchange(name)
    principal.check(CONFIGURE, "exchange", name)
    is_new = name not in declarations.vhost.exchanges
    if is_new and not name.startswith(b"amq."):
        principal.check_forwarding("exchange", name, arguments, "alternate-exchange")
    declarations.declare_exchange(name, kind, durable, auto_delete, internal, arguments)
    return is_new


def delete_exchange(principal: Principal, name: bytes, *, if_unused: bool) -> None:
    """Delete an exchange with its bindings; a missing one is no error.

    :raises AmqpError: 406 if `if_unused` is set and something is bound to it; 403 for a predeclared exchange or without the
        permission.
    """
    if name and not name.startswith(b"amq."):
        principal.check(CONFIGURE, "exchange", name)
    principal.declarations.delete_exchange(name, if_unused)
