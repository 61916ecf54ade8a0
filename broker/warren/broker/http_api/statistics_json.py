"""Statistics in the form that RabbitMQ's API has: `message_stats`, rates as `NAME_details`, and samples where asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from warren.broker.http_api.api_error import bad_request
from warren.broker.management.request import Json
from warren.broker.management.statistics.collector import Collector
from warren.broker.management.statistics.series import TICK, Series

MOST_SAMPLES = 1000
"""Most samples of one value that a response contains."""


@dataclass(frozen=True)
class SampleRange:
    """Samples that a request asks for.

    :param age: seconds that they cover.
    :param step: seconds between two of them.
    """

    age: int
    step: int

    @classmethod
    def parse(cls, query: Mapping[str, str], kind: str) -> SampleRange | None:
        """Read `KIND_age` and `KIND_incr` from a query; None if one is missing.

        :param kind: `lengths`, `msg_rates`, `data_rates` or `node_stats`.
        """
        try:
            age, step = int(query[f"{kind}_age"]), int(query[f"{kind}_incr"])
        except KeyError:
            return None
        except ValueError:
            raise bad_request(f"{kind}_age and {kind}_incr must be numbers") from None
        if age < 1 or step < 1 or age // step > MOST_SAMPLES:
            raise bad_request(
                f"{kind}_age and {kind}_incr ask for no sample, or for more than {MOST_SAMPLES}"
            )
        return cls(age, step)


class Statistics:
    """Rates and samples of one broker, for responses."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector

    def values(
        self,
        series: Series | None,
        names: Iterable[str],
        present: Iterable[int],
        first: int,
        chosen: SampleRange | None,
    ) -> dict[str, Json]:
        """Return values by name, each with `NAME_details`: its rate, and samples if the request asks for them.

        :param series: samples of these values; None before the first one.
        :param present: the present values, in the order of `names`.
        :param first: column of the first of them.
        """
        found: dict[str, Json] = {}
        for index, (name, value) in enumerate(zip(names, present, strict=True)):
            found[name] = value
            found[f"{name}_details"] = self.details(series, first + index, value, chosen)
        return found

    def details(self, series: Series | None, column: int, value: int, chosen: SampleRange | None) -> Json:
        """Return the rate of a value, and its samples if a request asks for them."""
        collector = self.collector
        rate = series.rate(column, collector.tick) if series is not None else 0.0
        if chosen is None:
            return {"rate": rate}
        tick = collector.now()
        taken = [(tick, value)] if series is None else series.samples(column, tick, chosen.age, chosen.step)
        shown = [{"sample": sample, "timestamp": collector.timestamp(at)} for at, sample in taken]
        seconds = (taken[0][0] - taken[-1][0]) * TICK
        return {
            "avg": sum(sample for _, sample in taken) / len(taken),
            "avg_rate": (taken[0][1] - taken[-1][1]) / seconds if seconds else 0.0,
            "rate": rate,
            "samples": shown,
        }
