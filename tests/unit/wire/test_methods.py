"""Method codec: the same bytes as pamqp for every method, in both directions."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands, frame
from pamqp.base import Frame as Command

from tests.support.tiers import examples
from warren.wire import field_tables
from warren.wire.methods import BY_ID, BY_NAME, Argument, Method, decode, encode
from warren.wire.methods import frame as method_frame
from warren.wire.reply_codes import AmqpError, Reply

THEIRS: dict[int, type[Command]] = dict(commands.INDEX_MAPPING)

OURS_IN_PAMQP = [BY_ID[index] for index in sorted(THEIRS) if index in BY_ID]

SHORT = st.text("abcdefghij.-_", max_size=100).map(str.encode)
STRATEGIES: dict[str, st.SearchStrategy[Argument]] = {
    "bit": st.booleans(),
    "octet": st.integers(0, 2**8 - 1),
    "u16": st.integers(0, 2**16 - 1),
    "u32": st.integers(0, 2**32 - 1),
    # pamqp decodes them as signed numbers.
    "u64": st.integers(0, 2**63 - 1),
    "short": SHORT,
    "longstr": SHORT,
    "table": st.dictionaries(st.text("xyz-", min_size=1, max_size=9), st.booleans() | st.text()).map(
        lambda table: field_tables.encode(dict(table))
    ),
}


def test_the_table_covers_the_protocol() -> None:
    """All methods of pamqp except those that nobody uses."""
    names = {kind.name for index, kind in THEIRS.items() if index not in BY_ID}
    assert names <= {
        "Access.Request",
        "Access.RequestOk",
        "Connection.UpdateSecret",
        "Connection.UpdateSecretOk",
    }
    assert len(BY_ID) == len(BY_NAME)


@pytest.mark.parametrize("method", BY_ID.values(), ids=lambda method: method.name)
@given(data=st.data())
@settings(deadline=None, max_examples=examples(12))
def test_a_method_round_trips(method: Method, data: Any) -> None:
    values = [data.draw(STRATEGIES[kind]) for kind, _ in method.fields]
    payload = encode(method.name, *values)
    assert int.from_bytes(payload[:4]) == method.class_id << 16 | method.method_id
    assert decode(method, payload) == dict(zip((name for _, name in method.fields), values, strict=True))


@pytest.mark.parametrize("method", OURS_IN_PAMQP, ids=lambda method: method.name)
@given(data=st.data())
@settings(deadline=None, max_examples=examples(12))
def test_pamqp_decodes_the_same_arguments(method: Method, data: Any) -> None:
    values = [data.draw(STRATEGIES[kind]) for kind, _ in method.fields]
    payload = encode(method.name, *values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        command: Command = THEIRS[method.class_id << 16 | method.method_id]()
    command.unmarshal(payload[4:])
    read = [getattr(command, name) for name in command.__slots__]
    assert len(read) == len(values)
    for (kind, field), ours, theirs in zip(method.fields, values, read, strict=True):
        if kind == "table":
            assert isinstance(ours, bytes)
            assert theirs == field_tables.decode(ours)
        elif kind in ("short", "longstr"):
            assert isinstance(ours, bytes)
            assert (theirs if isinstance(theirs, bytes) else theirs.encode()) == ours, field
        else:
            assert theirs == ours, field


@pytest.mark.parametrize("method", BY_ID.values(), ids=lambda method: method.name)
def test_a_payload_of_another_length_than_its_fields_is_an_error(method: Method) -> None:
    empty: dict[str, Argument] = {"short": b"ab", "longstr": b"cde", "table": b"\1kt\1", "bit": True}
    payload = encode(method.name, *(empty.get(kind, 7) for kind, _ in method.fields))
    for wrong in (*(payload[:size] for size in range(4, len(payload))), payload + b"\0"):
        with pytest.raises(AmqpError) as caught:
            decode(method, wrong)
        error = caught.value
        assert error.code is Reply.FRAME_ERROR
        assert (error.class_id, error.method_id) == (method.class_id, method.method_id)
        assert error.text == f"FRAME_ERROR - cannot decode <<{','.join(map(str, wrong[4:]))}>>"


def test_bits_share_an_octet() -> None:
    payload = encode("queue.declare", 0, b"", False, True, False, True, True, b"")
    assert payload[7] == 0b11010
    assert decode(BY_NAME["queue.declare"], payload).flag("auto_delete")


def test_a_short_string_has_at_most_255_bytes() -> None:
    encode("queue.purge", 0, b"q" * 255, False)
    with pytest.raises(ValueError, match=r"queue\.purge: queue is longer than 255 bytes"):
        encode("queue.purge", 0, b"q" * 256, False)


def test_a_method_frame_equals_that_of_pamqp() -> None:
    ours = method_frame(7, "basic.ack", 42, True)
    assert ours == frame.marshal(commands.Basic.Ack(42, True), 7)
