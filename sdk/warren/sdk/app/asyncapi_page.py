"""HTML page of an AsyncAPI document: one file without scripts and without requests to anywhere."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

from warren.sdk.app.schema_compatibility import LIMITS, resolve, type_text

DEEPEST: Final = 6
"""Levels of nested fields that the page and its examples show."""

STYLE: Final = """
:root { color-scheme: light dark; --text: #1b1f24; --soft: #57606a; --line: #d0d7de; --back: #ffffff; --card: #f6f8fa;
  --link: #0550ae; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --soft: #9ea7b3; --line: #3d444d; --back: #0d1117;
  --card: #161b22; --link: #79b8ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 60rem; color: var(--text); background: var(--back);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
a { color: var(--link); }
a:focus-visible, summary:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
h1 { line-height: 1.2; } h2 { border-bottom: 1px solid var(--line); padding-top: 1rem; }
.skip { position: absolute; left: -100rem; } .skip:focus { position: static; }
article { border: 1px solid var(--line); border-radius: .5rem; padding: 0 1rem 1rem; margin: 1rem 0;
  background: var(--card); }
code, pre { font: .9em/1.45 ui-monospace, monospace; }
pre { white-space: pre-wrap; margin: .5rem 0; padding: .75rem; border: 1px solid var(--line); border-radius: .5rem;
  background: var(--back); }
dt { font-weight: 600; margin-top: .5rem; } dd { margin-left: 1rem; } nav ul { padding-left: 1.2rem; }
.soft { color: var(--soft); }
ul.fields { list-style: none; margin: 0; padding: 0; } ul.fields ul { padding-left: 1rem; border-left: 2px solid var(--line);
  list-style: none; }
ul.fields li { padding: .35rem 0; } summary { cursor: pointer; font-weight: 600; }
"""


def asyncapi_page(document: Mapping[str, Any]) -> str:
    """Return an HTML page of an AsyncAPI 3 document: operations, channels, and messages with their fields and an example.

    The page is one file. It has no script and makes no request; its content security policy allows its own style only. It
    follows the light or dark setting of the browser, and the width of the screen.
    """
    return "".join(_Page(document).html())


class _Page:
    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._messages: Mapping[str, Any] = document.get("components", {}).get("messages", {})
        self._ids = {name: f"message-{number}" for number, name in enumerate(self._messages)}

    def html(self) -> Iterator[str]:
        info = self._document.get("info", {})
        title = escape(str(info.get("title", "Messages")))
        digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
        yield (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-{digest}'\">\n"
            f"<title>{title}: messages</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
            '<a class="skip" href="#content">Skip to the content</a>\n'
            f'<header>\n<h1>{title}</h1>\n<p class="soft">Version {escape(str(info.get("version", "")))},'
            f" AsyncAPI {escape(str(self._document.get('asyncapi', '')))}</p>\n"
        )
        if "description" in info:
            yield f"<p>{escape(info['description'])}</p>\n"
        for server in self._document.get("servers", {}).values():
            address = f"{server.get('protocol')}://{server.get('host')}{server.get('pathname', '')}"
            yield f"<p>Broker: <code>{escape(address)}</code></p>\n"
        yield '</header>\n<nav aria-label="Messages">\n<h2>Messages</h2>\n<ul>\n'
        for name in self._messages:
            yield f"<li>{self._link(name)}</li>\n"
        yield '</ul>\n</nav>\n<main id="content">\n'
        yield from self._operations()
        yield from self._channels()
        yield '<section aria-labelledby="details">\n<h2 id="details">Messages in detail</h2>\n'
        for name, message in self._messages.items():
            yield from self._message(name, message)
        yield "</section>\n</main>\n</body>\n</html>\n"

    def _operations(self) -> Iterator[str]:
        yield '<section aria-labelledby="operations">\n<h2 id="operations">Operations</h2>\n'
        for name, operation in self._document.get("operations", {}).items():
            channel = _target(operation.get("channel", {}))
            verb = "Publishes" if operation.get("action") == "send" else "Handles"
            yield f"<article>\n<h3>{escape(name)}</h3>\n"
            way = "to" if verb == "Publishes" else "from"
            yield f"<p>{verb} {self._links(operation)} {way} {self._channel_link(channel)}</p>\n"
            text = operation.get("description") or operation.get("summary")
            if text:
                yield _paragraphs(text)
            if "reply" in operation:
                yield f"<p>Reply: {self._links(operation['reply'])}</p>\n"
            yield "</article>\n"
        yield "</section>\n"

    def _channels(self) -> Iterator[str]:
        yield '<section aria-labelledby="channels">\n<h2 id="channels">Channels</h2>\n'
        for name, channel in self._document.get("channels", {}).items():
            binding = channel.get("bindings", {}).get("amqp", {})
            if not binding:
                continue
            yield f'<article id="{_channel_id(name)}">\n<h3>{escape(name)}</h3>\n<dl>\n'
            if binding.get("is") == "queue":
                yield _term("Queue", f"<code>{escape(str(channel.get('address')))}</code>")
                facts = binding.get("queue", {})
            else:
                exchange = binding.get("exchange", {})
                yield _term(
                    "Exchange",
                    f"<code>{escape(str(exchange.get('name')))}</code>, {escape(str(exchange.get('type')))}",
                )
                yield _term("Routing key", f"<code>{escape(str(channel.get('address')))}</code>")
                facts = exchange
            yield _term("Durable", "yes" if facts.get("durable") else "no")
            bound = [f"<code>{escape(each['exchange'])}</code> with <code>{escape(each['routingKey'])}</code>"
                     for each in channel.get("x-bound-to", ())]  # fmt: skip
            if bound:
                yield _term("Bound to", "<br>".join(bound))
            for key, value in channel.get("x-queue-arguments", {}).items():
                yield _term(f"<code>{escape(key)}</code>", f"<code>{escape(json.dumps(value))}</code>")
            yield "</dl>\n</article>\n"
        yield "</section>\n"

    def _message(self, name: str, message: Mapping[str, Any]) -> Iterator[str]:
        yield f'<article id="{self._ids[name]}">\n<h3>{escape(str(message.get("title", name)))}</h3>\n'
        if "description" in message:
            yield _paragraphs(message["description"])
        yield "<dl>\n"
        yield _term("Type", f"<code>{escape(str(message.get('name', name)))}</code>")
        if message.get("x-aliases"):
            aliases = ", ".join(f"<code>{escape(each)}</code>" for each in message["x-aliases"])
            yield _term("Former types", aliases)
        yield _term("Content type", f"<code>{escape(str(message.get('contentType', '')))}</code>")
        yield "</dl>\n"
        payload = message.get("payload", {})
        fields = "".join(self._fields(payload, ()))
        kind = escape(type_text(payload, self._document))
        yield f"<h4>Fields</h4>\n{fields}" if fields else f"<p>Content: {kind}</p>\n"
        example = json.dumps(_example(payload, self._document, ()), indent=2, ensure_ascii=False)
        yield f"<details>\n<summary>Example</summary>\n<pre><code>{escape(example)}</code></pre>\n</details>\n</article>\n"

    def _fields(self, schema: Mapping[str, Any], path: tuple[Mapping[str, Any], ...]) -> Iterator[str]:
        schema = resolve(schema, self._document)
        properties = schema.get("properties", {})
        # A model that contains itself is shown once: each further level multiplies the page by its fields.
        if not properties or len(path) >= DEEPEST or any(schema is each for each in path):
            return
        yield '<ul class="fields">\n'
        required = schema.get("required", ())
        for name, field in properties.items():
            known = resolve(field, self._document)
            kind = escape(type_text(field, self._document))
            need = "required" if name in required else "optional"
            yield f'<li><code>{escape(name)}</code> {kind} <span class="soft">{need}'
            for keyword in LIMITS:
                if keyword in known:
                    yield f", {keyword} {escape(str(known[keyword]))}"
            if "default" in field:
                yield f", default <code>{escape(json.dumps(field['default'], ensure_ascii=False))}</code>"
            yield "</span>"
            if text := field.get("description"):
                yield f"<br>{escape(text)}"
            if "enum" in known and "$ref" in field:
                yield f"<br>{escape(type_text(known, self._document))}"
            for inner in _nested(known):
                yield from self._fields(inner, (*path, schema))
            yield "</li>\n"
        yield "</ul>\n"

    def _links(self, operation: Mapping[str, Any]) -> str:
        found = (_target(each) for each in operation.get("messages", ()))
        return ", ".join(self._link(name) for name in found)

    def _link(self, name: str) -> str:
        title = escape(str(self._messages.get(name, {}).get("title", name)))
        return f'<a href="#{self._ids[name]}">{title}</a>' if name in self._ids else title

    def _channel_link(self, name: str) -> str:
        return f'<a href="#{_channel_id(name)}">{escape(name)}</a>'


def _nested(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the schemas whose fields belong to a field: its own, those of its items, of its values, or of its members."""
    yield schema
    for part in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(part, Mapping):
            yield part
    for union in ("anyOf", "oneOf"):
        yield from schema.get(union, ())


def _example(
    schema: Mapping[str, Any], document: Mapping[str, Any], path: tuple[Mapping[str, Any], ...]
) -> Any:
    """Return a value that fits a schema, in most cases: its own example or default, or one made up from its type."""
    named, schema = schema, resolve(schema, document)
    for source in (named, schema):
        if source.get("examples"):
            return source["examples"][0]
    if "const" in schema or "enum" in schema:
        return schema["const"] if "const" in schema else schema["enum"][0]
    for union in ("anyOf", "oneOf"):
        if members := schema.get(union):
            ends = [each for each in members if not _recurs(each, document, path)]
            return _example((ends or members)[0], document, path)
    if named.get("default") is not None:
        return named["default"]
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        if len(path) >= DEEPEST or _recurs(schema, document, path):
            return {}
        inner = (*path, schema)
        return {
            name: _example(field, document, inner) for name, field in schema.get("properties", {}).items()
        }
    if kind == "array":
        item = schema.get("items")
        if not item or len(path) >= DEEPEST or _recurs(item, document, path):
            return []
        return [_example(item, document, (*path, schema))]
    if kind in ("integer", "number"):
        return schema.get("minimum", schema.get("exclusiveMinimum", 0) + ("exclusiveMinimum" in schema))
    if kind in ("boolean", "null"):
        return False if kind == "boolean" else None
    return EXAMPLES.get(schema.get("format", ""), "text")


def _recurs(
    schema: Mapping[str, Any], document: Mapping[str, Any], path: tuple[Mapping[str, Any], ...]
) -> bool:
    """Return whether a schema is that of a value around it."""
    schema = resolve(schema, document)
    return any(schema is each for each in path)


EXAMPLES: Final = {
    "date-time": "2026-02-01T12:00:00Z",
    "date": "2026-02-01",
    "time": "12:00:00Z",
    "duration": "PT5S",
    "uuid": "018f4e2a-7c10-7a6b-9c1d-0242ac120002",
    "email": "ada@example.org",
    "uri": "https://example.org/",
    "binary": "(bytes)",
}
"""Example texts by the format of a string."""


def _term(term: str, text: str) -> str:
    return f"<dt>{term}</dt><dd>{text}</dd>\n"


def _paragraphs(text: str) -> str:
    return "".join(f"<p>{escape(each)}</p>\n" for each in text.split("\n\n"))


def _channel_id(name: str) -> str:
    return f"channel-{escape(name)}"


def _target(reference: Mapping[str, Any]) -> str:
    return str(reference.get("$ref", "")).rpartition("/")[2].replace("~1", "/").replace("~0", "~")
