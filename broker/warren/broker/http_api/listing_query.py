"""Selection of rows and columns of a list by a request's query: pages, filter by name, order and columns.

https://www.rabbitmq.com/docs/management#http-api describes the parameters `page`, `page_size`, `name`, `use_regex`,
`sort`, `sort_reverse` and `columns`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from warren.broker.http_api.api_error import ApiError, bad_request
from warren.broker.management.request import Json
from warren.broker.management.time_slices import sort_in_steps
from warren.core.name_pattern import InvalidPattern, NamePattern

Object = TypeVar("Object")

DEFAULT_PAGE_SIZE: Final = 100
MOST_PAGE_SIZE: Final = 500
LONGEST_EXPRESSION: Final = 1024
"""Characters that a regular expression may have, as in RabbitMQ."""


@dataclass(frozen=True)
class ListingQuery:
    """Rows and columns that a request asks for.

    :param page: number of the page, from 1; None for all rows at once.
    :param name: part of the names to list, or a regular expression with `use_regex`; pages only, as in RabbitMQ.
    :param sort: path of the value to order by, such as `message_stats.publish_details.rate`; empty for the usual order.
    :param columns: paths of the values to send; empty for all.
    """

    page: int | None = None
    page_size: int = DEFAULT_PAGE_SIZE
    name: str = ""
    use_regex: bool = False
    sort: str = ""
    sort_reverse: bool = False
    columns: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> ListingQuery:
        """Read the parameters of a query.

        :raises ApiError: 400 for a page or page size that is no number or out of range, or a regular expression that is
            too long; for those also without a page, except that a number out of range is then ignored.
        """
        page, size = _number(query, "page"), _number(query, "page_size")
        use_regex = query.get("use_regex") == "true"
        if use_regex and len(query.get("name", "")) > LONGEST_EXPRESSION:
            raise ApiError(400, "invalid_pagination_parameters", "name filter regex is too long")
        if page is not None and (
            page < 1 or not 1 <= (DEFAULT_PAGE_SIZE if size is None else size) <= MOST_PAGE_SIZE
        ):
            shown = "undefined" if size is None else str(size)
            raise ApiError(
                400,
                "invalid_pagination_parameters",
                f"Invalid pagination parameters: page number {page}, page size {shown}",
            )
        columns = tuple(tuple(path.split(".")) for path in query.get("columns", "").split(",") if path)
        return cls(
            page,
            DEFAULT_PAGE_SIZE if size is None else size,
            query.get("name", "") if page is not None else "",
            use_regex,
            query.get("sort", ""),
            query.get("sort_reverse") == "true",
            columns,
        )

    def matcher(self) -> Callable[[str], bool]:
        """Return a function that tells whether an object of a name is to be listed.

        An invalid regular expression matches nothing, as in RabbitMQ, nor does one that `NamePattern` does not support.
        """
        if not self.name:
            return lambda _: True
        if not self.use_regex:
            part = self.name.lower()
            return lambda name: part in name.lower()
        try:
            return NamePattern(self.name, ignore_case=True).found_in
        except InvalidPattern:
            return lambda _: False

    def needs_values(self) -> bool:
        """Return whether rows can be put in order only when they are built: the order is not by name."""
        return self.sort not in ("", "name", "vhost")

    def order_in_steps(self, rows: list[Json]) -> Generator[None, None, list[Json]]:
        """Return rows in the order that the request asks for; rows without the value come first, as in RabbitMQ.

        Rows of the same value stay in the usual order; the reverse order is that of all rows, these included. The rows
        are the value of a generator that yields after each small step.
        """
        if self.sort:
            path = self.sort.split(".")
            rows = yield from sort_in_steps(rows, lambda row: sort_key(lookup(row, path)))
        return self.directed(rows)

    def directed(self, ordered: list[Object]) -> list[Object]:
        """Return objects in the direction that the request asks for.

        :param ordered: the objects in ascending order.
        """
        return ordered[::-1] if self.sort_reverse else ordered

    def cut(self, rows: list[Json]) -> list[Json]:
        """Return the rows of the page.

        :raises ApiError: 400 if there is no such page.
        """
        if self.page is None:
            return rows
        start = (self.page - 1) * self.page_size
        if self.page > 1 and start >= len(rows):
            raise ApiError(
                400,
                "page_out_of_range",
                f"Page out of range, page: {self.page} page size: {self.page_size}, len: {len(rows)}",
            )
        return rows[start : start + self.page_size]

    def page_facts(self, items: list[Json], filtered: int, total: int) -> Json:
        """Return the object that describes a page.

        :param items: rows of the page.
        :param filtered: number of rows of all pages.
        :param total: number of rows without the filter.
        """
        return {
            "filtered_count": filtered,
            "item_count": len(items),
            "items": items,
            "page": self.page,
            "page_count": -(-filtered // self.page_size),
            "page_size": self.page_size,
            "total_count": total,
        }

    def select(self, row: Json) -> Json:
        """Return an object with only the columns that the request asks for."""
        if not self.columns or not isinstance(row, dict):
            return row
        found: dict[str, Json] = {}
        for path in self.columns:
            _copy(row, found, path)
        return found


def sort_key(value: Json) -> tuple[int, float, str]:
    """Return a key that orders values of different types: none, numbers, texts."""
    if value is None:
        return 0, 0.0, ""
    if isinstance(value, bool | int | float):
        return 1, float(value), ""
    return 2, 0.0, value if isinstance(value, str) else str(value)


def lookup(row: Json, path: list[str]) -> Json:
    """Return the value at a path of nested objects; None if there is none."""
    for name in path:
        if not isinstance(row, dict) or name not in row:
            return None
        row = row[name]
    return row


def _number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    # Python also takes spaces and underscores.
    if re.fullmatch(r"[+-]?[0-9]{1,4000}", text) is None:
        raise bad_request("Pagination parameters are invalid")
    return int(text)


def _copy(source: Json, target: dict[str, Json], path: tuple[str, ...]) -> None:
    name, *rest = path
    if not isinstance(source, dict) or name not in source:
        return
    if not rest:
        target[name] = source[name]
        return
    inner: dict[str, Json] = {}
    _copy(source[name], inner, tuple(rest))
    if inner:
        known = target.setdefault(name, {})
        known.update(inner)
