"""Responses that list objects: filtered, ordered and encoded in slices, so that other clients are served meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from warren.broker.http_api.call import Call, Response
from warren.broker.http_api.listing_query import ListingQuery
from warren.broker.management.request import Json
from warren.broker.management.time_slices import run_in_slices

Object = TypeVar("Object")


async def list_objects(
    call: Call,
    objects: Sequence[Object],
    name: Callable[[Object], str],
    row: Callable[[Object], Json | None],
    *,
    paged: bool = True,
) -> Response:
    """Return the objects that a request asks for, as an array, or as an object with `items` if it asks for a page.

    :param objects: all objects that the caller may see, in the usual order.
    :param name: returns the name of an object, by which pages are filtered.
    :param row: returns the JSON of an object; None leaves it out, because it is gone.
    :param paged: False for a list that has no pages in RabbitMQ.
    """
    wanted = call.query if paged else {name: value for name, value in call.query.items() if name != "page"}
    query = ListingQuery.parse(wanted)
    return await run_in_slices(_build(query, objects, name, row))


def _build(
    query: ListingQuery,
    objects: Sequence[Object],
    name: Callable[[Object], str],
    row: Callable[[Object], Json | None],
) -> Generator[None, None, Response]:
    matches = query.matcher()
    chosen: list[Object] = []
    for each in objects:
        if matches(name(each)):
            chosen.append(each)
        yield
    filtered = len(chosen)
    ordered_late = query.needs_values()
    if not ordered_late:
        chosen = _ordered(query, chosen, name)
        chosen = query.cut(chosen)
    rows: list[Json] = []
    for each in chosen:
        made = row(each)
        if made is not None:
            rows.append(made)
        yield
    if ordered_late:
        rows = query.cut(query.order(rows))
    encoded: list[bytes] = []
    for made in rows:
        encoded.append(_encode(query.select(made)))
        yield
    if query.page is None:
        return Response(encoded=_chunks(b"[", encoded, b"]"))
    facts = query.page_facts([], filtered, len(objects))
    facts["item_count"] = len(encoded)
    head, tail = _encode(facts).split(b'"items":[]', 1)
    return Response(encoded=_chunks(head + b'"items":[', encoded, b"]" + tail))


def _ordered(query: ListingQuery, objects: list[Object], name: Callable[[Object], str]) -> list[Object]:
    if query.sort == "name":
        return sorted(objects, key=name, reverse=query.sort_reverse)
    return objects[::-1] if query.sort_reverse else objects


def _encode(value: Json) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")


def _chunks(head: bytes, rows: list[bytes], tail: bytes) -> list[bytes]:
    """Join encoded rows to parts of a moderate size."""
    parts: list[bytes] = []
    buffer = [head]
    size = 0
    for index, row in enumerate(rows):
        if index:
            buffer.append(b",")
        buffer.append(row)
        size += len(row)
        if size > 65536:
            parts.append(b"".join(buffer))
            buffer, size = [], 0
    parts.append(b"".join([*buffer, tail]))
    return parts
