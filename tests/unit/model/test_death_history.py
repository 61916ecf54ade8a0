"""Dead letters made of encoded bytes: byte for byte those of a reference that decodes and encodes all properties."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.field_values import PROPERTIES
from tests.support.tiers import examples
from warren.broker.model.dead_letter.death_history import (
    REASONS,
    DeathHistory,
    queues_left,
    split_deaths,
)
from warren.wire import field_tables, properties
from warren.wire.content import body_payload, header_payload, join_content
from warren.wire.field_tables import Field
from warren.wire.headers_splice import HeadersSplice
from warren.wire.properties import Properties

CHANNEL = 3
TIME = 1_000_000_000
NAMES = st.sampled_from(
    (b"", b"a", b"orders", "bücher".encode(), b"\xff\x00", b"reasonS\x00\x00\x00\x08rejected")
)
DEATHS = st.lists(st.tuples(NAMES, st.sampled_from(REASONS)), min_size=1, max_size=6)


@given(
    PROPERTIES,
    DEATHS,
    NAMES,
    st.binary(max_size=40),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
@settings(deadline=None, max_examples=examples(400))
def test_the_bytes_of_dead_letters(
    given: Properties,
    died: list[tuple[bytes, str]],
    exchange: bytes,
    key: bytes,
    removes_cc: bool,
    sets_last_death: bool,
    trusts_history: bool,
) -> None:
    # A history that a client wrote is not trusted; only one that this broker has begun is.
    trusts_history = trusts_history and b"x-death" not in bytes(given.get("headers", b""))  # type: ignore[arg-type]
    content = expected = join_content(CHANNEL, properties.encode(given, 4), b"body")
    histories: dict[tuple[bytes, str], DeathHistory] = {}
    splice = HeadersSplice()
    for queue, reason in died:
        history = histories.setdefault(
            (queue, reason),
            DeathHistory(queue, reason, TIME, removes_cc=removes_cc, sets_last_death=sets_last_death),
        )
        # Twice: the second result comes from memory.
        for _ in range(2):
            splice.parse(content)
            headers = history.record(splice.table, trusts_history, exchange, key, splice.expiration)
            letter = splice.join(CHANNEL, headers.table)
            reference, keys = dead_letter(
                expected, trusts_history, queue, reason, exchange, key, removes_cc, sets_last_death
            )
            assert letter == reference
            assert headers.keys == keys
        content, expected = letter, reference
        raw = properties.decode(header_payload(letter)).headers["x-death"].raw
        assert headers.deaths == split_deaths(raw)
        names = [b"a", b"orders", b"", b"\xff\x00", b"elsewhere"]
        assert [name for name in names if name not in queues_left(headers.deaths)] == outside_cycles(
            names, raw
        )
        trusts_history, exchange, key = True, b"dlx", b"dead" if removes_cc else key


def test_headers_of_many_messages() -> None:
    # More than are remembered, and each twice.
    history = DeathHistory(b"q", "expired", TIME, removes_cc=False, sets_last_death=True)
    splice = HeadersSplice()
    for _ in range(2):
        for number in range(200):
            given = Properties(headers=field_tables.encode({"n": number}))
            content = join_content(CHANNEL, properties.encode(given, 0), b"")
            splice.parse(content)
            headers = history.record(splice.table, False, b"", b"k%d" % number, splice.expiration)
            assert (
                splice.join(CHANNEL, headers.table)
                == dead_letter(content, False, b"q", "expired", b"", b"k%d" % number, False, True)[0]
            )


# -- the reference


def text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def dead_letter(
    content: bytes,
    trusts_history: bool,
    queue: bytes,
    reason: str,
    exchange: bytes,
    key: bytes,
    removes_cc: bool,
    sets_last_death: bool,
) -> tuple[bytes, list[bytes]]:
    """Return the content of a dead letter and the keys it is published with, from fully decoded properties."""
    decoded = properties.decode(header_payload(content))
    headers = dict(decoded.headers)
    copies, blind = stored_keys(headers, "CC"), stored_keys(headers, "BCC")
    if removes_cc:
        headers.pop("CC", None)
    headers.pop("BCC", None)
    old = headers.get("x-death") if trusts_history else None
    deaths = [] if old is None else field_tables.decode_items(old.raw[5:])
    entries = [field_tables.decode_fields(death.raw[5:]) for death in deaths]
    same = [
        entry for entry in entries if (entry["reason"].value, entry["queue"].value) == (reason, text(queue))
    ]
    if same:
        entries.remove(same[0])
        count = same[0]["count"].value
        assert isinstance(count, int)
        entry = {**same[0], "count": field_tables.long_field(count + 1)}
    else:
        entry = {
            "count": field_tables.long_field(1),
            "reason": field_tables.field_of(reason),
            "queue": field_tables.field_of(text(queue)),
            "time": field_tables.field_of(field_tables.Timestamp(TIME)),
            "exchange": field_tables.field_of(text(exchange)),
            "routing-keys": field_tables.field_of([text(name) for name in (key, *copies)]),
        }
        expiration = decoded.data("expiration")
        if expiration is not None:
            entry["original-expiration"] = field_tables.field_of(text(expiration))
    entries.insert(0, entry)
    items = b"".join(
        b"F" + len(encoded).to_bytes(4) + encoded
        for encoded in (field_tables.join(entry) for entry in entries)
    )
    headers["x-death"] = Field("A", None, b"A" + len(items).to_bytes(4) + items)
    for part, value in (("reason", reason), ("queue", text(queue)), ("exchange", text(exchange))):
        if not trusts_history or f"x-first-death-{part}" not in headers:
            headers[f"x-first-death-{part}"] = field_tables.field_of(value)
        if sets_last_death:
            headers[f"x-last-death-{part}"] = field_tables.field_of(value)
    changed = Properties(decoded)
    changed.pop("expiration", None)
    changed["headers"] = headers
    body = body_payload(content)
    encoded = join_content(CHANNEL, properties.encode(changed, len(body)), body)
    return encoded, [key, *copies, *blind]


def stored_keys(headers: dict[str, Field], name: str) -> list[bytes]:
    field = headers.get(name)
    if field is None or not isinstance(field.value, list):
        return []
    return [item.encode("utf-8", "surrogateescape") for item in field.value if isinstance(item, str)]


def outside_cycles(names: list[bytes], deaths: bytes) -> list[bytes]:
    """Return the queues that a dead letter may enter, by the decoded x-death."""
    entries = [field_tables.decode(death.raw[5:]) for death in field_tables.decode_items(deaths[5:])]
    left = []
    for name in names:
        places = [at for at, entry in enumerate(entries) if entry["queue"] == text(name)]
        if not places or any(entry["reason"] == "rejected" for entry in entries[: places[0] + 1]):
            left.append(name)
    return left
