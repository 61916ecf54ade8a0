"""AMQP URLs are read as RabbitMQ's clients read them."""

from __future__ import annotations

import pytest

from warren.wire.amqp_url import AmqpUrl, parse_url


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("amqp://", AmqpUrl("localhost", 5672, "guest", "guest", "/", False)),
        ("amqp://127.0.0.1:5690", AmqpUrl("127.0.0.1", 5690, "guest", "guest", "/", False)),
        ("amqps://h/", AmqpUrl("h", 5671, "guest", "guest", "/", True)),
        ("amqp://u%61:p%40ss@h:1/%2f", AmqpUrl("h", 1, "ua", "p@ss", "/", False)),
        ("amqp://h/shop", AmqpUrl("h", 5672, "guest", "guest", "shop", False)),
        ("amqp://[::1]:5673/v", AmqpUrl("::1", 5673, "guest", "guest", "v", False)),
    ],
)
def test_the_parts_of_a_url(text: str, parts: AmqpUrl) -> None:
    assert parse_url(text) == parts
    assert parse_url(parts.masked)[:2] == parts[:2]


@pytest.mark.parametrize(
    "text", ["", "localhost:5672", "http://h", "amqp://h:x", "amqp://h:99999", "amqp://h/a/b", "amqp://[::1"]
)
def test_what_is_no_amqp_url_is_said_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"^not an AMQP URL: .+$"):
        parse_url(text)


def test_the_password_is_masked_everywhere() -> None:
    assert "secret" not in parse_url("amqp://u:secret@h").masked
    with pytest.raises(ValueError, match="not an AMQP URL") as caught:
        parse_url("amqp://u:secret@h:x")
    assert "secret" not in str(caught.value)
