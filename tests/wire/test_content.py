"""A message's content: one header frame and its body frames, taken apart and put together."""

from __future__ import annotations

import pytest

from warren.wire.content import (
    body_payload,
    body_size,
    content_frames,
    header_payload,
    join_content,
    make_header,
)


@pytest.mark.parametrize("body", [b"", b"x", bytes(range(256)) * 40])
def test_content_keeps_its_header_and_body(body: bytes) -> None:
    header = make_header(len(body), b"\x02", 0x1000)
    content = join_content(3, header, body)
    assert (header_payload(content), body_payload(content), body_size(content)) == (header, body, len(body))


@pytest.mark.parametrize("length", [0, 1, 91, 92, 93, 184, 185])
def test_a_body_is_cut_into_frames_that_fit(length: int) -> None:
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
