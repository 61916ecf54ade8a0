"""Field tables of AMQP as JSON objects, and the reverse, as RabbitMQ's API converts them."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, NamedTuple

from warren.broker.http_api.api_error import bad_request
from warren.broker.management.json_values import plain_value
from warren.broker.management.request import Json
from warren.broker.management.time_slices import run_at_once
from warren.wire import field_tables
from warren.wire.field_tables import Field

STEP: Final = 64
"""Fields of a table that are encoded in one step: they take some tenths of a millisecond."""


def table_json(raw: bytes) -> dict[str, Json]:
    """Return an encoded field table as a JSON object; empty if it is malformed."""
    try:
        return {name: plain_value(value) for name, value in field_tables.decode(raw).items()}
    except field_tables.TableError:
        return {}


class EncodedTable(NamedTuple):
    """Field table: its fields by name, and its bytes without their length."""

    fields: dict[str, Field]
    raw: bytes


def encode_arguments(value: Json) -> bytes:
    """Encode a JSON object as a field table; its integers have 64 bits, as in RabbitMQ.

    :raises ApiError: 400 if it is no object, has more values than arguments over AMQP (`MAX_VALUES`, 4,096), or holds null
        or what a table cannot.
    """
    raw = run_at_once(table_in_steps(value)).raw
    try:
        field_tables.check_peer_table(raw)
    except field_tables.TableError as error:
        raise bad_request(str(error)) from None
    return raw


def table_in_steps(value: Json) -> Generator[None, None, EncodedTable]:
    """Return a JSON object as a field table, as the value of a generator that yields after each small step.

    :raises ApiError: 400 if it is no object, or holds null or what a table cannot.
    """
    fields: dict[str, Field] = {}
    parts: list[bytes] = []
    if value not in ([], None):
        if not isinstance(value, dict):
            raise bad_request("arguments must be a JSON object")
        try:
            for name, each in value.items():
                found = (yield from _container(each)) if isinstance(each, list | dict) else _scalar(each)
                field = fields[name] = field_tables.field_of(found)
                parts += (field_tables.name_bytes(name), field.raw)
                if len(fields) % STEP == 0:
                    yield
        except RecursionError:
            raise bad_request("arguments are nested too deeply") from None
        except ValueError as error:
            raise bad_request(str(error)) from None
    return EncodedTable(fields, b"".join(parts))


def _container(value: list[Json] | dict[str, Json]) -> Generator[None, None, field_tables.Value]:
    yield
    if isinstance(value, dict):
        table: dict[str, field_tables.Value] = {}
        for name, each in value.items():
            table[name] = (yield from _container(each)) if isinstance(each, list | dict) else _scalar(each)
        return table
    array: list[field_tables.Value] = []
    for each in value:
        found = (yield from _container(each)) if isinstance(each, list | dict) else _scalar(each)
        array.append(found)
    return array


def _scalar(value: Json) -> field_tables.Value:
    if value is None:
        raise bad_request("null_not_allowed")
    if isinstance(value, bool | float | str):
        return value
    if isinstance(value, int):
        return field_tables.LongInteger(value)
    raise bad_request(f"arguments cannot hold {value!r}")
