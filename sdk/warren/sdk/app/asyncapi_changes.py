"""Comparison of two AsyncAPI documents of an App: which changes break other services that read or write its messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from warren.sdk.app.schema_compatibility import differences, field_paths, resolve

Audience = Literal["readers", "writers"]
"""Services that a change breaks: those that read what the App sends, or those that write what it handles."""

NOT_COMPARED: Final = frozenset({"vhost", "name"})
"""Fields of an AMQP binding that are no change of the channel itself."""


@dataclass(frozen=True, slots=True)
class ContractChange:
    """A difference between two documents.

    :ivar breaks: the services that the change breaks; None if it breaks none.
    :ivar place: message, field, queue or exchange.
    :ivar text: what changed, and why that breaks somebody.
    """

    breaks: Audience | None
    place: str
    text: str


@dataclass(frozen=True, slots=True)
class _Operation:
    """A message that an App sends or handles, with its address.

    :ivar queue: name of the queue; empty for an exchange.
    :ivar addresses: exchanges and routing keys under which the message is published.
    """

    action: str
    name: str
    message: Mapping[str, Any]
    queue: str
    addresses: tuple[tuple[str, str], ...]
    reply: tuple[Mapping[str, Any], ...]
    fields: frozenset[str]

    @property
    def audience(self) -> Audience:
        return "readers" if self.action == "send" else "writers"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.message.get("x-aliases", ()))


def compare_asyncapi(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[ContractChange]:
    """Return the changes between two AsyncAPI 3 documents that `asyncapi_document` made, breaking ones first.

    A change of a message that the App sends breaks readers if they, as the old document describes them, cannot read what
    the new App sends. A change of a message that it handles breaks writers if the new App cannot read what they send.

    :raises ValueError: if one of them is not an AsyncAPI 3 document.
    """
    for which, document in (("old", old), ("new", new)):
        if not isinstance(document, Mapping) or not str(document.get("asyncapi", "")).startswith("3."):
            raise ValueError(f"the {which} document is not an AsyncAPI 3 document")
    found = dict.fromkeys((*_operation_changes(old, new), *_channel_changes(old, new)))
    broken = {change.place for change in found if change.breaks is not None}
    # What breaks one side is not listed again as harmless for the other.
    found = {change: None for change in found if change.breaks is not None or change.place not in broken}
    return sorted(found, key=lambda change: (change.breaks is None, change.breaks or ""))


def _operation_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[ContractChange]:
    before, after = list(_operations(old)), list(_operations(new))
    matched: set[int] = set()
    for operation in before:
        index = _successor(operation, after, matched)
        if index is None:
            yield from _removed(operation, after)
            continue
        matched.add(index)
        yield from _changed(operation, after[index], old, new)
    for index, operation in enumerate(after):
        if index not in matched and not any(_same_message(each, operation) for each in before):
            yield ContractChange(
                None, operation.name, f"new: the App {_verb(operation)} it {_where(operation)}"
            )


def _successor(operation: _Operation, after: list[_Operation], matched: set[int]) -> int | None:
    """Return the index of the operation in the new document that continues an old one: the same message by its name or an
    alias, with the most similar address; None if there is none.
    """
    candidates = [
        index for index, each in enumerate(after) if index not in matched and _same_message(operation, each)
    ]
    return max(
        candidates,
        key=lambda index: (after[index].queue == operation.queue, _covers(after[index], operation)),
        default=None,
    )


def _same_message(old: _Operation, new: _Operation) -> bool:
    return old.action == new.action and old.name in new.names


def _removed(operation: _Operation, after: list[_Operation]) -> Iterator[ContractChange]:
    renamed = [
        each.name
        for each in after
        if each.action == operation.action
        and each.addresses == operation.addresses
        and each.fields == operation.fields
        and operation.fields
    ]
    if renamed and operation.action == "receive":
        text = (
            f"renamed to {renamed[0]} without an alias: messages of the former type are dead-lettered; add"
            f" aliases=[{operation.name!r}]"
        )
        yield ContractChange("writers", operation.name, text)
    elif renamed:
        text = (
            f"renamed to {renamed[0]}: readers know only the former type; publish with type={operation.name!r} until they"
            " know the new one"
        )
        yield ContractChange("readers", operation.name, text)
    else:
        text = f"removed: the App no longer {_verb(operation)} it {_where(operation)}"
        yield ContractChange(operation.audience, operation.name, text)


def _changed(
    before: _Operation, after: _Operation, old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[ContractChange]:
    audience, name = before.audience, after.name
    if before.name != after.name:
        if audience == "writers":
            yield ContractChange(
                None, before.name, f"renamed to {name}, which has the former name as an alias"
            )
        else:
            text = f"renamed to {name}: readers that know only the former type do not read it"
            yield ContractChange("readers", before.name, text)
    for alias in before.message.get("x-aliases", ()):
        if alias not in after.names:
            breaks: Audience | None = "writers" if audience == "writers" else None
            yield ContractChange(
                breaks, name, f"the alias {alias!r} was removed: messages of this type are not read"
            )
    if not _covers(after, before):
        breaks = audience
        text = f"moved from {_places(before)} to {_places(after)}"
        yield ContractChange(breaks, name, text)
    elif before.queue != after.queue:
        text = f"its queue is {after.queue!r} instead of {before.queue!r}: messages may be left in the former one"
        yield ContractChange(None, name, text)
    elif before.addresses != after.addresses:
        yield ContractChange(None, name, f"also published to {_places(after)}")
    if before.message.get("contentType") != after.message.get("contentType"):
        text = (
            f"content type {after.message.get('contentType')} instead of {before.message.get('contentType')}"
        )
        # Handlers read JSON and MessagePack, whatever their class says.
        yield ContractChange("readers" if audience == "readers" else None, name, text)
    yield from _payload_changes(name, audience, before.message, after.message, old, new)
    answers: Audience = "writers" if audience == "readers" else "readers"
    for reply_before, reply_after in zip(before.reply, after.reply, strict=False):
        yield from _payload_changes(f"{name} (reply)", answers, reply_before, reply_after, old, new)
    if bool(before.reply) != bool(after.reply):
        yield ContractChange(
            answers, name, "it is answered now" if after.reply else "it is no longer answered"
        )


def _payload_changes(
    name: str,
    audience: Audience,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    old: Mapping[str, Any],
    new: Mapping[str, Any],
) -> Iterator[ContractChange]:
    was, now = before.get("payload", {}), after.get("payload", {})
    sent, accepted = ((was, old), (now, new)) if audience == "writers" else ((now, new), (was, old))
    found = differences(*sent, *accepted)
    for path, text in found:
        yield ContractChange(audience, f"{name}.{path}" if path else name, text)
    paths_before, paths_after = field_paths(was, old), field_paths(now, new)
    broken = tuple(f"{path}." for path, _ in found)
    for path in sorted({*paths_before, *paths_after}):
        if any(each.startswith((f"{path}.", f"{path}[")) for each in broken):
            continue
        if path not in paths_before:
            yield ContractChange(None, f"{name}.{path}", "new field")
        elif path not in paths_after:
            yield ContractChange(None, f"{name}.{path}", "removed field, which was optional or is ignored")
        elif paths_before[path] != paths_after[path]:
            text = f"{paths_before[path]} is now {paths_after[path]}"
            yield ContractChange(None, f"{name}.{path}", text)


def _channel_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[ContractChange]:
    """Compare how queues and exchanges are declared: the broker refuses other arguments for one that exists."""
    before, after = _declared(old), _declared(new)
    for place in before.keys() & after.keys():
        was, now = before[place], after[place]
        for key in sorted({*was, *now} - NOT_COMPARED):
            if was.get(key) != now.get(key):
                text = f"{key} is {now.get(key)!r} instead of {was.get(key)!r}: the broker refuses it for one that exists"
                yield ContractChange("writers" if place.startswith("queue") else "readers", place, text)


def _declared(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for channel in document.get("channels", {}).values():
        binding = channel.get("bindings", {}).get("amqp", {})
        for kind in ("queue", "exchange"):
            if kind in binding:
                arguments = channel.get("x-queue-arguments", {}) if kind == "queue" else {}
                found[f"{kind} {binding[kind].get('name')}"] = {**binding[kind], **arguments}
    return found


def _operations(document: Mapping[str, Any]) -> Iterator[_Operation]:
    for operation in document.get("operations", {}).values():
        channel = resolve(operation["channel"], document)
        queue, addresses = _addresses(channel)
        reply = tuple(resolve(each, document) for each in operation.get("reply", {}).get("messages", ()))
        for each in operation.get("messages", ()):
            message = resolve(each, document)
            fields = frozenset(resolve(message.get("payload", {}), document).get("properties", ()))
            action, name = str(operation.get("action", "")), str(message.get("name", ""))
            yield _Operation(action, name, message, queue, addresses, reply, fields)


def _addresses(channel: Mapping[str, Any]) -> tuple[str, tuple[tuple[str, str], ...]]:
    binding = channel.get("bindings", {}).get("amqp", {})
    address = str(channel.get("address") or "")
    if binding.get("is") != "queue":
        return "", ((str(binding.get("exchange", {}).get("name", "")), address),)
    bound = tuple((str(each["exchange"]), str(each["routingKey"])) for each in channel.get("x-bound-to", ()))
    return address, bound or (("", address),)


def _covers(new: _Operation, old: _Operation) -> bool:
    """Return whether the new operation has all addresses of the old one, also by a wildcard for its routing keys."""
    return all(
        any(exchange == other and _matches(pattern, key) for exchange, pattern in new.addresses)
        for other, key in old.addresses
    )


def _matches(pattern: str, key: str) -> bool:
    if pattern in (key, "#"):
        return True
    return _words_match(pattern.split("."), key.split("."))


def _words_match(wanted: list[str], words: list[str]) -> bool:
    """Return whether a topic pattern has all keys of another one, both as words; `#` stands for none or more words."""
    if not wanted:
        return not words
    if wanted[0] == "#":
        return _words_match(wanted[1:], words) or (bool(words) and _words_match(wanted, words[1:]))
    matches = bool(words) and (wanted[0] == words[0] or (wanted[0] == "*" and words[0] != "#"))
    return matches and _words_match(wanted[1:], words[1:])


def _verb(operation: _Operation) -> str:
    return "sends" if operation.action == "send" else "handles"


def _where(operation: _Operation) -> str:
    return f"{'to' if operation.action == 'send' else 'from'} {operation.queue or _places(operation)}"


def _places(operation: _Operation) -> str:
    return ", ".join(
        f"{exchange}/{key}" if exchange else f"queue {key}" for exchange, key in operation.addresses
    )
