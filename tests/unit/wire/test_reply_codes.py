"""Reply codes and RabbitMQ's reply texts."""

from __future__ import annotations

import pytest

from warren.wire.reply_codes import AmqpError, Reply, describe_frame, erlang_binary, reply_text


def test_a_text_names_its_code() -> None:
    error = AmqpError(Reply.NOT_FOUND, "no queue 'q' in vhost '/'", 50, 10)
    assert error.text == str(error) == "NOT_FOUND - no queue 'q' in vhost '/'"
    assert (error.class_id, error.method_id) == (50, 10)


def test_soft_errors_close_the_channel_only() -> None:
    """AMQP 0-9-1 section 1.2."""
    assert {int(code) for code in Reply if code.closes_channel_only} == {311, 313, 403, 404, 405, 406}


@pytest.mark.parametrize("explanation", ["x" * 243, "\u00e9" * 121])
def test_a_text_of_up_to_255_bytes_is_unchanged(explanation: str) -> None:
    text = reply_text(Reply.NOT_FOUND, explanation)
    assert text == f"NOT_FOUND - {explanation}"
    assert len(text.encode()) <= 255


@pytest.mark.parametrize("explanation", ["x" * 244, "\u00e9" * 122, "a\u20ac" * 90, "\udcff\udcfe" * 200])
def test_a_longer_text_is_cut_to_a_short_string(explanation: str) -> None:
    text = reply_text(Reply.NOT_FOUND, explanation)
    assert text.startswith("NOT_FOUND - ")
    assert text.endswith("...")
    assert 250 <= len(text.encode()) <= 255


def test_a_very_long_explanation_is_cut_once() -> None:
    """Shortening it byte by byte would copy 10 MB ten million times and not end."""
    assert len(reply_text(Reply.NOT_FOUND, "x" * 10_000_000)) == 255


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "<<>>"),
        (b"abc", '<<"abc">>'),
        (b'a"b\\', '<<"a\\"b\\\\">>'),
        (b"a\0", "<<97,0>>"),
        (b"\xff\x01", "<<255,1>>"),
    ],
)
def test_bytes_are_formatted_as_erlang_prints_them(data: bytes, text: str) -> None:
    assert erlang_binary(data) == text


def test_a_frame_is_described_by_its_first_octets() -> None:
    assert describe_frame(1, b"\0" * 3) == "type 1, all octets = <<0,0,0>>"
    assert describe_frame(7, b"a" * 17) == f'type 7, first 16 octets = <<"{"a" * 16}">>'
