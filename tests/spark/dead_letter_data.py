"""Generated dead letters, and the numbers that the job must find, computed with pandas."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import pytest

from warren.pipeline.jobs.dead_letters.summary import Summary

NOON = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
COLUMNS = (
    "queue STRING, offset BIGINT, exchange STRING, routing_key STRING, headers MAP<STRING, STRING>, message_id STRING, "
    "timestamp TIMESTAMP, type STRING, app_id STRING, body BINARY"
)


@dataclass(frozen=True)
class Death:
    """Dead-lettering of a message, as the headers of the dead letter record it."""

    queue: str
    reason: str
    at: datetime
    """Time of the first dead-lettering in this queue for this reason; whole seconds if the broker recorded it."""
    message_id: str | None = None
    published: datetime | None = None
    published_from: str | None = None
    count: int = 1
    before: tuple[tuple[str, str, int, datetime], ...] = ()
    """Queue, reason, count and time of earlier dead-letterings, the latest first."""
    by: str = "broker"
    error: str | None = None
    type: str | None = "order"

    @property
    def deaths(self) -> int:
        return self.count + sum(count for _, _, count, _ in self.before)

    def row(self, offset: int) -> tuple[Any, ...]:
        """Return the dead letter as a row of the data source."""
        stamp = self.published if self.published_from == "timestamp" else None
        headers = self.broker_headers() if self.by == "broker" else self.sdk_headers()
        return (
            "dead-letters",
            offset,
            "",
            "dead-letters",
            headers,
            self.message_id,
            stamp,
            self.type,
            None,
            b"body",
        )

    def broker_headers(self) -> dict[str, str | None]:
        history = [(self.queue, self.reason, self.count, self.at), *self.before]
        entries = [
            {
                "count": count,
                "reason": reason,
                "queue": queue,
                "time": at.isoformat(),
                "exchange": "shop",
                "routing-keys": [f"to.{queue}"],
            }
            for queue, reason, count, at in history
        ]
        first = history[-1]
        return {
            "x-death": json.dumps(entries),
            "x-first-death-queue": first[0],
            "x-first-death-reason": first[1],
            "x-first-death-exchange": "shop",
        }

    def sdk_headers(self) -> dict[str, str | None]:
        headers: dict[str, str | None] = {
            "warren-dead-reason": self.reason,
            "warren-dead-queue": self.queue,
            "warren-dead-time": str(round(self.at.timestamp() * 1000)),
            "warren-deaths": "1",
            "warren-exchange": "shop",
            "warren-key": f"to.{self.queue}",
        }
        if self.error is not None:
            headers["warren-dead-error"] = self.error
        if self.published_from == "header" and self.published is not None:
            headers["warren-first-published"] = str(round(self.published.timestamp() * 1000))
        return headers


def uuid7(made: datetime) -> str:
    """Return a UUID version 7 for a given time (RFC 9562 section 5.7); the SDK's own follows a clock."""
    return str(
        uuid.UUID(int=round(made.timestamp() * 1000) << 80 | 0x7 << 76 | 0x8 << 60 | random.getrandbits(59))
    )


def to_whole_seconds(instant: datetime) -> datetime:
    return instant.replace(microsecond=0)


def generated_deaths(count: int, seed: int) -> list[Death]:
    """Generate dead letters, some of them in bursts, with headers of every possible form."""
    draw = random.Random(seed)
    found = []
    for number in range(count):
        queue, reason = draw.choice(
            [
                ("bills", "expired"),
                ("bills", "rejected"),
                ("mail", "maxlen"),
                ("mail", "expired"),
                ("a" * 90, "failed"),
            ]
        )
        # Two outages, and single dead letters all day.
        at = NOON + timedelta(
            seconds=draw.choice([draw.uniform(0, 40), draw.uniform(3600, 3700), draw.uniform(0, 86_400)])
        )
        published = at - timedelta(seconds=draw.choice([0.02, 1.5, 30, 1800]) * draw.uniform(1, 3))
        published = published.replace(microsecond=published.microsecond // 1000 * 1000)
        known = draw.choice(["message_id", "timestamp", "none", "header"])
        identity = None if known == "none" and draw.random() < 0.5 else f"message {number}"
        by = "sdk" if reason == "failed" else "broker"
        if known == "header" and by == "broker":
            known = "message_id"
        if known == "message_id":
            identity = uuid7(published)
        if known == "timestamp":
            published = to_whole_seconds(published)
        at = to_whole_seconds(at) if by == "broker" else at.replace(microsecond=at.microsecond // 1000 * 1000)
        before: tuple[tuple[str, str, int, datetime], ...] = ()
        repeats = 1
        if by == "broker" and draw.random() < 0.2:
            repeats = draw.randrange(1, 5)
            before = (
                ("waits", "expired", draw.randrange(1, 9), at - timedelta(seconds=draw.randrange(1, 30))),
            )
        if known == "none" and before:
            published, known = before[-1][3], "first_death"
        found.append(
            Death(
                queue,
                reason,
                at,
                identity,
                None if known == "none" else published,
                None if known == "none" else known,
                repeats,
                before,
                by,
                draw.choice(["OSError: no route", "ValueError: bad"]) if by == "sdk" else None,
                draw.choice(["order", "mail", None]),
            )
        )
    return found


def expected(deaths: Sequence[Death], gap: float, least: int, of: str) -> dict[str, Any]:
    """Compute the job's numbers with pandas from the deaths."""
    table = pd.DataFrame(
        {
            "queue": [death.queue for death in deaths],
            "reason": [death.reason for death in deaths],
            "at": [death.at.timestamp() for death in deaths],
            "after": [seconds_to_death(death) for death in deaths],
            "source": [death.published_from or "none" for death in deaths],
            "deaths": [death.deaths for death in deaths],
            "count": [death.count for death in deaths],
            "id": [death.message_id for death in deaths],
            "type": [death.type for death in deaths],
        }
    )
    known = table[(table.source != "first_death") & table.after.notna()].after
    sessions = []
    dated = table[table.id.notna() | (table["count"] == 1)]
    for kind, group in dated.groupby(["reason", "queue"] if of == "queue" else ["reason"]):
        times = group["at"].sort_values()
        for _, session in times.groupby((times.diff() > gap).cumsum()):
            sessions.append((len(session), session.min(), session.max(), *kind))
    large = sorted((each for each in sessions if each[0] >= least), key=lambda each: (-each[0], each[1]))
    return {
        "by_reason": table.groupby("reason").size().to_dict(),
        "places": {
            key: (
                len(group),
                group[group.source != "first_death"].after.median(),
                group[group.source != "first_death"].after.quantile(0.9),
            )
            for key, group in table.groupby(["queue", "reason"])
        },
        "known": len(known),
        "by_source": table.source.value_counts().to_dict(),
        "quantiles": {
            f"{level:.2f}": known.quantile(level) for level in (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
        },
        "mean": known.mean(),
        "extremes": (known.min(), known.max()),
        "after": known,
        "times": deaths_per_message(table.id.fillna(table.index.to_series().astype(str)), table.deaths),
        "types": table.type.fillna("").value_counts().to_dict(),
        "bursts": large,
        "dated": len(dated),
    }


def deaths_per_message(identities: Any, deaths: Any) -> Any:
    """Return how often each message died. Letters with equal numbers of deaths are of different publishes of it."""
    publish = deaths.groupby([identities, deaths]).cumcount()
    return deaths.groupby([identities, publish]).max().groupby(level=0).sum()


def seconds_to_death(death: Death) -> float | None:
    if death.published is None:
        return None
    apart = round((death.at - death.published).total_seconds(), 6)
    coarse = death.by == "broker" or death.published_from == "timestamp"
    return 0.0 if -(1.0 if coarse else 0.001) < apart < 0 else apart


def bucket_counts(values: Any, buckets: Sequence[Any]) -> list[int]:
    return [
        int(
            (
                (values > (float("-inf") if bucket.above is None else bucket.above))
                & (values <= (float("inf") if bucket.up_to is None else bucket.up_to))
            ).sum()
        )
        for bucket in buckets
    ]


def assert_agrees(summary: Summary, truth: dict[str, Any]) -> None:
    assert summary.by_reason == truth["by_reason"]
    assert summary.deaths == sum(truth["by_reason"].values())
    assert {(place.queue, place.reason): place.deaths for place in summary.places} == {
        key: place[0] for key, place in truth["places"].items()
    }
    for place in summary.places:
        _, median, slow = truth["places"][place.queue, place.reason]
        assert [place.median_after, place.p90_after] == [pytest.approx(median), pytest.approx(slow)]
    late = summary.after
    assert late.known == truth["known"]
    assert {name: count for name, count in late.by_source.items() if count} == {
        name: count for name, count in truth["by_source"].items() if name != "none"
    }
    assert late.unknown == truth["by_source"].get("none", 0)
    assert late.least_only == truth["by_source"].get("first_death", 0)
    assert late.quantiles == {level: pytest.approx(value) for level, value in truth["quantiles"].items()}
    assert late.mean == pytest.approx(truth["mean"])
    assert [late.minimum, late.maximum] == [pytest.approx(each) for each in truth["extremes"]]
    assert [bucket.count for bucket in late.histogram] == bucket_counts(truth["after"], late.histogram)
    assert [bucket.count for bucket in summary.times] == bucket_counts(truth["times"], summary.times)
    assert {group.words[0] or "": group.deaths for group in summary.types} == truth["types"]
    assert sum(sum(step.deaths.values()) for step in summary.timeline) == summary.deaths - summary.undated
    assert summary.bursts == len(truth["bursts"])
    assert summary.deaths_in_bursts == sum(burst[0] for burst in truth["bursts"])
    assert summary.deaths_beside_bursts == truth["dated"] - summary.deaths_in_bursts
    assert summary.deaths_left_out == summary.deaths - truth["dated"]
    assert {(burst.deaths, burst.began, burst.ended, burst.reason) for burst in summary.largest_bursts} <= {
        (count, iso(first), iso(last), kind[0]) for count, first, last, *kind in truth["bursts"]
    }
    assert [burst.deaths for burst in summary.largest_bursts] == [burst[0] for burst in truth["bursts"]][:20]


def iso(seconds: float) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=round(seconds * 1000))).isoformat()
