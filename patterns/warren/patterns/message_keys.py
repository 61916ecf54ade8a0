"""Keys that patterns take from messages."""

from __future__ import annotations

from warren.sdk import DeadLetter


def key_text(key: object, owner: str, origin: str) -> str:
    """Return the text of a key that was taken from a message.

    :param owner: name of the pattern that takes it, for the error text.
    :param origin: where the key comes from, such as `field 'order_id'`.
    :raises DeadLetter: the key is None or empty: all messages without a key would be taken for the same.
    """
    if key is None or key == "":
        shown = "None" if key is None else "empty"
        raise DeadLetter(f"{owner}: the message has no key, because its {origin} is {shown}")
    return str(key)


__all__ = ["key_text"]
