"""Mismatch report: how an existing exchange or queue differs from its declaration, argument by argument.

AMQP has no method that shows an exchange or a queue. But a declaration that differs is answered with 406 and the text
`inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': received '1' but current is '2'`, which names the first
difference with both values. Declared again with the broker's value, the reply names the next difference, until none is
left. So the broker's own rules of equality decide.

The exchange or queue may be deleted meanwhile. So that a comparison never declares it, with arguments of the broker's that
nobody wants any more, each declaration has an argument with an invalid value: a broker looks at it only if it has to create
the exchange or queue, and then refuses it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from warren.sdk.errors import TopologyMismatch
from warren.sdk.topology.declarations import Declaration, MethodRunner
from warren.sdk.topology.exchange import Exchange
from warren.sdk.topology.queue import Queue

MOST = 64
"""Largest number of differences that are read from one exchange or queue; more than a queue has arguments."""

GUARDS: dict[str, tuple[tuple[str, Any], ...]] = {
    "exchange": (("alternate-exchange", 0),),
    "queue": (("x-max-age", "!"), ("x-max-priority", -1)),
}
"""Arguments with which a broker creates nothing. It does not compare `x-max-age` of classic and quorum queues, and
`x-max-priority` of streams. It compares `alternate-exchange` as the last property of an exchange."""

_REPLY = re.compile(
    r"received (?:none|the value '.*' of type '\w+'|'.*') but current is (?P<current>.+)", re.DOTALL
)
_VALUE = re.compile(r"the value '(?P<value>.*)' of type '(?P<type>\w+)'", re.DOTALL)
_INTEGERS = {"signedint", "long", "short", "byte", "unsignedbyte", "unsignedshort", "unsignedint"}


@dataclass(frozen=True, slots=True)
class Difference:
    """One argument or property with another value on the broker than in the declaration.

    :ivar argument: its AMQP name: `x-message-ttl`, `alternate-exchange`, `durable`, `type`.
    :ivar declared: the declared value; None if it is not declared.
    :ivar current: the value on the broker; None if it has none.
    """

    argument: str
    declared: Any
    current: Any

    def __str__(self) -> str:
        return f"{self.argument} is {_display(self.current)} on the broker and {_display(self.declared)} here"


async def differences(runner: MethodRunner, item: Exchange | Queue) -> tuple[Difference, ...]:
    """Return all differences between the declaration of an exchange or queue and the one that exists on the broker.

    Nothing is declared, even if the exchange or queue does not exist, or is deleted meanwhile.

    :raises TopologyMismatch: if it does not exist (404), if the broker refuses the declaration for another reason,
        or with a text that cannot be parsed (AMQP cuts texts off after 255 bytes).
    """
    own = Declaration.of(item)
    trial = own
    guards = list(GUARDS[own.kind])
    if own.arguments.get("x-queue-type") == "stream":
        guards.reverse()
    found: dict[str, Difference] = {}
    while guards and len(found) < MOST:
        guard, invalid = guards[0]
        try:
            await runner.run(f"cannot compare {own.kind} {own.name!r}", _with(trial, guard, invalid).declare)
            break
        except TopologyMismatch as error:
            if _refuses(str(error), guard):
                raise TopologyMismatch(f"{own.kind} {own.name!r} does not exist", reply_code=404) from None
            read = read_mismatch(str(error), trial) if error.reply_code == 406 else None
            if read is None or read.argument in found:
                if found:
                    break
                raise
            declared = own.properties.get(read.argument, own.arguments.get(read.argument))
            if read.argument == guard:
                del guards[0]
            if read.argument != guard or read.current != declared:
                found[read.argument] = replace(read, declared=declared)
            trial = _with(trial, read.argument, read.current)
    return tuple(found.values())


def _refuses(text: str, argument: str) -> bool:
    """Return whether a broker refuses an argument as invalid, and so did not find the exchange or queue."""
    return (
        f"invalid arg '{argument}'" in text
        or re.search(f"invalid type '\\w+' for arg '{argument}'", text) is not None
    )


def read_mismatch(text: str, form: Declaration) -> Difference | None:
    """Return the difference that the reply text of a 406 names; None if it names none, or is cut off.

    :param form: the declaration that the broker refused.
    """
    _, begun, rest = text.partition("inequivalent arg '")
    argument, _, rest = rest.partition("' for ")
    _, named, rest = rest.partition(f"{form.kind} '{form.name}' in vhost '")
    reply = _REPLY.search(rest)
    if not begun or not named or reply is None:
        return None
    declared = form.properties.get(argument, form.arguments.get(argument))
    current = reply["current"]
    if current == "none":
        return Difference(argument, declared, None)
    if (typed := _VALUE.fullmatch(current)) is not None:
        return Difference(argument, declared, _value(typed["value"], typed["type"]))
    if current[:1] == current[-1:] == "'" and len(current) > 1:
        # The text has no type; assume that of the declared value.
        return Difference(argument, declared, _value(current[1:-1], type(declared).__name__))
    return None


def _with(form: Declaration, argument: str, value: Any) -> Declaration:
    if argument in form.properties:
        return replace(form, properties={**form.properties, argument: value})
    arguments = {name: kept for name, kept in form.arguments.items() if name != argument}
    if value is not None:
        arguments[argument] = value
    return replace(form, arguments=arguments)


def _value(text: str, kind: str) -> Any:
    if kind in _INTEGERS or kind == "int":
        try:
            return int(text)
        except ValueError:
            return text
    if kind == "bool":
        return text == "true"
    return text


def _display(value: Any) -> str:
    return "none" if value is None else repr(value)
