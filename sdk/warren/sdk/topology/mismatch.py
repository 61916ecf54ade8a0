"""What differs between a value and the thing of that name on the broker, argument by argument, over AMQP alone.

AMQP has no method that shows an exchange or a queue. But a declaration of one that exists is answered with 406 and the
text `inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': received '1' but current is '2'`, which names the first
difference and both values. Declared again with the broker's value there, the next one is named, until nothing differs.
The broker's own idea of equality is so the one that counts.
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
"""More differences than a queue has arguments."""

_SAID = re.compile(
    r"received (?:none|the value '.*' of type '\w+'|'.*') but current is (?P<current>.+)", re.DOTALL
)
_VALUE = re.compile(r"the value '(?P<value>.*)' of type '(?P<type>\w+)'", re.DOTALL)
_INTEGERS = {"signedint", "long", "short", "byte", "unsignedbyte", "unsignedshort", "unsignedint"}


@dataclass(frozen=True, slots=True)
class Difference:
    """One argument or property that is not on the broker as it is declared.

    :ivar argument: its name in AMQP: `x-message-ttl`, `alternate-exchange`, `durable`, `type`.
    :ivar declared: the value here; None if it is not declared.
    :ivar current: the value on the broker; None if it has none.
    """

    argument: str
    declared: Any
    current: Any

    def __str__(self) -> str:
        return f"{self.argument} is {_shown(self.current)} on the broker and {_shown(self.declared)} here"


async def differences(runner: MethodRunner, item: Exchange | Queue) -> tuple[Difference, ...]:
    """All that differs; the thing must be there, or this would make it: look first.

    :raises TopologyMismatch: if the broker says no, and it is not over an argument that can be read in its text (which
        AMQP cuts off after 255 bytes).
    """
    own = Declaration.of(item)
    trial = own
    found: dict[str, Difference] = {}
    while len(found) < MOST:
        try:
            await runner.run(f"cannot compare {own.kind} {own.name!r}", trial.declare)
            break
        except TopologyMismatch as error:
            read = read_mismatch(str(error), trial) if error.reply_code == 406 else None
            if read is None or read.argument in found:
                if found:
                    break
                raise
            declared = own.properties.get(read.argument, own.arguments.get(read.argument))
            found[read.argument] = replace(read, declared=declared)
            trial = _with(trial, read.argument, read.current)
    return tuple(found.values())


def read_mismatch(text: str, form: Declaration) -> Difference | None:
    """The difference that the text of a 406 names; None if it names none, or is cut off."""
    _, begun, rest = text.partition("inequivalent arg '")
    argument, _, rest = rest.partition("' for ")
    _, named, rest = rest.partition(f"{form.kind} '{form.name}' in vhost '")
    said = _SAID.search(rest)
    if not begun or not named or said is None:
        return None
    declared = form.properties.get(argument, form.arguments.get(argument))
    current = said["current"]
    if current == "none":
        return Difference(argument, declared, None)
    if (typed := _VALUE.fullmatch(current)) is not None:
        return Difference(argument, declared, _value(typed["value"], typed["type"]))
    if current[:1] == current[-1:] == "'" and len(current) > 1:
        # Without a type: where both have a value, they are taken to have the same one.
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


def _shown(value: Any) -> str:
    return "none" if value is None else repr(value)
