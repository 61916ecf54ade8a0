"""Responses that list objects: filtered, ordered and encoded in slices, so that other clients are served meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Final

from warren.broker.http_api.call import Call, Response
from warren.broker.http_api.listing_query import ListingQuery, Object, sort_key
from warren.broker.management.json_encoding import encode_in_steps
from warren.broker.management.request import Json
from warren.broker.management.time_slices import run_in_slices, sort_in_steps

PAGE_PARAMETERS: Final = frozenset({"page", "page_size", "name", "use_regex"})


async def list_objects(
    call: Call,
    objects: Sequence[Object],
    name: Callable[[Object], str] | None,
    row: Callable[[Object], Json | None],
    *,
    paged: bool = True,
    values: Mapping[str, Callable[[Object], Json]] | None = None,
) -> Response:
    """Return the objects that a request asks for, as an array, or as an object with `items` if it asks for a page.

    :param objects: all objects that the caller may see, in the usual order.
    :param name: returns the name of an object, by which pages are filtered; None if the objects have no names.
    :param row: returns the JSON of an object; None leaves it out, because it is gone.
    :param paged: False for a list that has no pages in RabbitMQ.
    :param values: functions that return a value of a row without building it, by the value's path: to order a long list by
        it, only the rows of the page are built.
    """
    query = ListingQuery.parse(call.query if paged else _without_page(call.query))
    value = (values or {}).get(query.sort)
    return await run_in_slices(_build(query, objects, name or _nameless, row, value))


async def list_rows(call: Call, rows: list[Json]) -> Response:
    """Return rows, which are there already, as an array in the order and with the columns that a request asks for."""
    query = ListingQuery.parse(_without_page(call.query))
    return await run_in_slices(_arrange(query, rows))


def _nameless(_: object) -> str:
    return ""


def _arrange(query: ListingQuery, rows: list[Json]) -> Generator[None, None, Response]:
    return (yield from _respond(query, (yield from query.order_in_steps(rows)), len(rows), len(rows)))


def _without_page(query: Mapping[str, str]) -> Mapping[str, str]:
    return {name: value for name, value in query.items() if name not in PAGE_PARAMETERS}


def _build(
    query: ListingQuery,
    objects: Sequence[Object],
    name: Callable[[Object], str],
    row: Callable[[Object], Json | None],
    value: Callable[[Object], Json] | None,
) -> Generator[None, None, Response]:
    matches = query.matcher()
    chosen: list[Object] = []
    for each in objects:
        if matches(name(each)):
            chosen.append(each)
        yield
    filtered = len(chosen)
    ordered_late = query.needs_values() and value is None
    if not ordered_late:
        chosen = query.cut((yield from _ordered(query, chosen, name, value)))
    rows: list[Json] = []
    for each in chosen:
        made = row(each)
        if made is not None:
            rows.append(made)
        yield
    if ordered_late:
        rows = query.cut((yield from query.order_in_steps(rows)))
    return (yield from _respond(query, rows, filtered, len(objects)))


def _respond(
    query: ListingQuery, rows: list[Json], filtered: int, total: int
) -> Generator[None, None, Response]:
    """Return rows with the columns that the request asks for: an array, or a page.

    :param filtered: number of rows of all pages.
    :param total: number of rows without the filter.
    """
    shown: list[Json] = []
    for row in rows:
        shown.append(query.select(row))
        yield
    whole = shown if query.page is None else query.page_facts(shown, filtered, total)
    return Response(encoded=(yield from encode_in_steps(whole)))


def _ordered(
    query: ListingQuery,
    objects: list[Object],
    name: Callable[[Object], str],
    value: Callable[[Object], Json] | None,
) -> Generator[None, None, list[Object]]:
    if value is not None:
        # The values may change between two steps; an order needs those of one time.
        keys: list[tuple[int, float, str]] = []
        for each in objects:
            keys.append(sort_key(value(each)))
            yield
        order = yield from sort_in_steps(range(len(keys)), keys.__getitem__)
        objects = [objects[index] for index in order]
    elif query.sort == "name":
        objects = yield from sort_in_steps(objects, name)
    return query.directed(objects)
