"""Client of a broker's Prometheus endpoint, which reads answers with Prometheus' own parser."""

from __future__ import annotations

import urllib.request
from urllib.parse import urlencode

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

PATIENCE = 120.0
"""Seconds that an answer may take on a busy machine."""


class Scraper:
    """Client of one broker's Prometheus endpoint."""

    def __init__(self, base: str) -> None:
        self.base = base

    def text(self, path: str = "/metrics", **query: str | list[str]) -> str:
        asked = f"?{urlencode(query, doseq=True)}" if query else ""
        with urllib.request.urlopen(f"{self.base}{path}{asked}", timeout=PATIENCE) as answer:
            assert answer.status == 200
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4"
            found: str = answer.read().decode()
            return found

    def families(self, path: str = "/metrics", **query: str | list[str]) -> dict[str, Metric]:
        found = list(text_string_to_metric_families(self.text(path, **query)))
        names = [family.name for family in found]
        assert len(names) == len(set(names)), "each family once"
        return {family.name: family for family in found}

    def samples(
        self, path: str = "/metrics", **query: str | list[str]
    ) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families(path, **query).values()
            for sample in family.samples
        }

    def value(self, name: str, path: str = "/metrics", **labels: str) -> float:
        return self.samples(path)[name, frozenset(labels.items())]
