"""Field tables of AMQP as JSON objects, and the reverse, as RabbitMQ's API converts them."""

from __future__ import annotations

from warren.broker.http_api.api_error import bad_request
from warren.broker.management.json_values import plain_value
from warren.broker.management.request import Json
from warren.wire import field_tables


def table_json(raw: bytes) -> dict[str, Json]:
    """Return an encoded field table as a JSON object; empty if it is malformed."""
    try:
        return {name: plain_value(value) for name, value in field_tables.decode(raw).items()}
    except field_tables.TableError:
        return {}


def encode_arguments(value: Json) -> bytes:
    """Encode a JSON object as a field table; its integers have 64 bits, as in RabbitMQ.

    :raises ApiError: 400 if it is no object, or holds null or what a table cannot.
    """
    if value in ([], None):
        return b""
    if not isinstance(value, dict):
        raise bad_request("arguments must be a JSON object")
    try:
        return field_tables.encode({name: _amqp_value(each) for name, each in value.items()})
    except RecursionError:
        raise bad_request("arguments are nested too deeply") from None
    except ValueError as error:
        raise bad_request(str(error)) from None


def _amqp_value(value: Json) -> field_tables.Value:
    if isinstance(value, list):
        return [_amqp_value(each) for each in value]
    if isinstance(value, dict):
        return {name: _amqp_value(each) for name, each in value.items()}
    if value is None:
        raise bad_request("null_not_allowed")
    if isinstance(value, int) and not isinstance(value, bool):
        return field_tables.LongInteger(value)
    if isinstance(value, bool | float | str):
        return value
    raise bad_request(f"arguments cannot hold {value!r}")
