"""AMQP URLs: parts, defaults, errors, and the masked password."""

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
        ("amqp://h/%252F", AmqpUrl("h", 5672, "guest", "guest", "%2F", False)),
        ("amqp://h/..", AmqpUrl("h", 5672, "guest", "guest", "..", False)),
        ("amqp://u@h", AmqpUrl("h", 5672, "u", "guest", "/", False)),
        ("amqp://u:@h", AmqpUrl("h", 5672, "u", "", "/", False)),
        ("amqp://:p@h", AmqpUrl("h", 5672, "", "p", "/", False)),
        ("amqp://:@h", AmqpUrl("h", 5672, "", "", "/", False)),
        ("amqp://@h", AmqpUrl("h", 5672, "guest", "guest", "/", False)),
    ],
)
def test_a_url_is_parsed_into_its_parts(text: str, parts: AmqpUrl) -> None:
    assert parse_url(text) == parts
    assert parse_url(parts.masked)[:2] == parts[:2]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost:5672",
        "http://h",
        "amqp://h:x",
        "amqp://h:99999",
        "amqp://h/a/b",
        "amqp://[::1",
        "amqp://h/%FF",
        "amqp://%C3:p@h",
        "amqp://u:%FF@h",
    ],
)
def test_an_invalid_url_is_an_error_of_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"^not an AMQP URL: .+$"):
        parse_url(text)


def test_the_password_is_neither_in_the_masked_url_nor_in_errors() -> None:
    assert "secret" not in parse_url("amqp://u:secret@h").masked
    with pytest.raises(ValueError, match="not an AMQP URL") as caught:
        parse_url("amqp://u:secret@h:x")
    assert "secret" not in str(caught.value)
