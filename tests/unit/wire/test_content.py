"""Message content: encoding and decoding of its header frame and body frames."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.wire import field_tables
from warren.wire.content import (
    body_payload,
    body_size,
    content_frames,
    header_payload,
    join_content,
    make_header,
    message_id,
)
from warren.wire.properties import Properties, Property, encode

SHORT = st.binary(max_size=255)
PROPERTIES: dict[str, st.SearchStrategy[Property]] = {
    **dict.fromkeys(
        ("content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "type", "app_id"),
        SHORT,
    ),
    "headers": st.dictionaries(st.text(max_size=9), st.integers(0, 9)).map(
        lambda table: field_tables.decode_fields(field_tables.encode(dict(table)))
    ),
    "delivery_mode": st.integers(0, 255),
    "priority": st.integers(0, 255),
    "timestamp": st.integers(0, 2**64 - 1),
}


@pytest.mark.parametrize("body", [b"", b"x", bytes(range(256)) * 40])
def test_content_round_trips_header_and_body(body: bytes) -> None:
    header = make_header(len(body), b"\x02", 0x1000)
    content = join_content(3, header, body)
    assert (header_payload(content), body_payload(content), body_size(content)) == (header, body, len(body))


@pytest.mark.parametrize("length", [0, 1, 91, 92, 93, 184, 185])
def test_a_body_is_split_into_frames_of_at_most_frame_max(length: int) -> None:
    body = bytes(range(length))
    header = make_header(length, b"", 0)
    frames = content_frames(join_content(0, header, body), 7, 100)
    parts = []
    while frames:
        size = int.from_bytes(frames[3:7], "big")
        assert frames[1:3] == b"\x00\x07"
        assert size + 8 <= 100
        assert frames[7 + size] == 0xCE
        parts.append((frames[0], frames[7 : 7 + size]))
        frames = frames[8 + size :]
    assert parts[0] == (2, header)
    assert [kind for kind, _ in parts[1:]] == [3] * -(-length // 92)
    assert b"".join(part for _, part in parts[1:]) == body


@given(st.fixed_dictionaries({}, optional=PROPERTIES), st.none() | SHORT, st.integers(0, 9))
def test_the_message_id_is_found_among_any_other_properties(
    others: dict[str, Property], identity: bytes | None, before: int
) -> None:
    values = Properties(others)
    if identity is not None:
        values["message_id"] = identity
    header = encode(values, 0)
    assert message_id(bytes(before) + header, before) == (identity or b"")


@given(st.binary(max_size=80))
def test_arbitrary_bytes_have_some_message_id_or_none(header: bytes) -> None:
    assert message_id(header) in header
