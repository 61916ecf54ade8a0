"""Checks of the objects that patterns are created with: stores, sessions, limiters, functions."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from warren.patterns.stores.url_masking import mask_url
from warren.sdk import ConfigError

STORES = "RedisStore('redis://HOST'), PostgresStore('postgresql://HOST/DATABASE') or SqliteStore('FILE')"
SESSIONS = "async_sessionmaker(create_async_engine('postgresql+asyncpg://HOST/DATABASE'))"


def check_store(owner: str, store: object, *, lists_records: bool = False) -> None:
    """Check that an object is a store.

    :param owner: name of the pattern that takes it, for the error text.
    :param lists_records: the pattern needs a `ListingStore`.
    :raises ConfigError: if it is none, for example the address of one; the text says what to write.
    """
    needed = ("compare_and_set", "records") if lists_records else ("compare_and_set",)
    check_object(owner, store, "a store", needed, _store_at(store) if isinstance(store, str) else STORES)


def check_sessions(owner: str, sessions: object) -> None:
    """Check that an object creates asynchronous sessions of SQLAlchemy, as `async_sessionmaker` does. Needs SQLAlchemy.

    :param owner: name of the pattern that takes it, for the error text.
    :raises ConfigError: if it does not, for example an engine or an address; the text says what to write.
    """
    from sqlalchemy.orm import sessionmaker

    remedy = SESSIONS
    if type(sessions).__name__ == "AsyncEngine":
        remedy = "async_sessionmaker(engine)"
    if isinstance(sessions, sessionmaker | type) or not callable(sessions):
        raise ConfigError(f"{owner} takes an async_sessionmaker, not {_shown(sessions)}: write {remedy}")


def check_function(option: str, function: object, example: str) -> None:
    """Check that an option is a function, or None.

    :param option: name of the option with its pattern, such as `Once: key`.
    :param example: what to write.
    :raises ConfigError: if it is anything else, for example the name of a field.
    """
    if function is not None and not callable(function):
        raise ConfigError(f"{option} takes a function, not {_shown(function)}: write {example}")


def check_object(owner: str, given: object, what: str, methods: tuple[str, ...], example: str) -> None:
    """Check that an object, which is no class, has the methods of a protocol.

    :param owner: name of the pattern that takes it, for the error text.
    :param what: name of such an object, with its article.
    :param example: what to write.
    :raises ConfigError: if it lacks one.
    """
    if isinstance(given, type) and all(hasattr(given, name) for name in methods):
        raise ConfigError(
            f"{owner} takes {what}, not the class {given.__name__}: write {given.__name__}(...)"
        )
    missing = [name for name in methods if not hasattr(given, name)]
    if not missing:
        return
    if len(missing) < len(methods):
        raise ConfigError(
            f"{owner} needs {what} with the method {missing[0]}, which {_shown(given)} lacks: write {example}"
        )
    raise ConfigError(f"{owner} takes {what}, not {_shown(given)}: write {example}")


def _store_at(address: str) -> str:
    """Return the expression for the store at an address, without its password."""
    scheme = urlsplit(address).scheme if "://" in address else ""
    if scheme in ("redis", "rediss", "unix"):
        return f"RedisStore({mask_url(address)!r})"
    if scheme.partition("+")[0] in ("postgresql", "postgres"):
        return f"PostgresStore({mask_url(address)!r})"
    return STORES if scheme else f"SqliteStore({address!r})"


def _shown(given: Any) -> str:
    """Return an object as an error text names it: short, and without the password of an address."""
    if isinstance(given, str):
        return f"the text {mask_url(given)!r}" if "://" in given else f"the text {given!r}"
    if given is None or isinstance(given, bool | int | float):
        return repr(given)
    if isinstance(given, type):
        return f"the class {given.__name__}"
    if hasattr(given, "__qualname__"):
        return f"the function {given.__qualname__}"
    name = type(given).__name__
    return f"{'an' if name[:1] in 'AEIOUaeiou' else 'a'} {name}"


__all__ = ["check_function", "check_object", "check_sessions", "check_store"]
