"""A private Prometheus: its own free loopback port and folder, which scrapes given addresses once a second."""

from __future__ import annotations

import json
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.support.polling import wait_until
from tests.support.processes import Child, free_port

VARIABLES = {
    "$__rate_interval": "10s",
    "$__interval": "5s",
    "$__range": "60s",
    "$job": ".+",
    "$instance": ".+",
}
"""Values that Grafana puts into the queries of a dashboard."""


def installed() -> bool:
    return shutil.which("prometheus") is not None and shutil.which("promtool") is not None


class PrometheusServer:
    """A running server; `query` returns the series that a query of PromQL finds now."""

    def __init__(self, port: int) -> None:
        self.base = f"http://127.0.0.1:{port}"

    def answer(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.base}{path}", timeout=60) as answer:
            return json.load(answer)

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.base}/-/ready", timeout=60) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError):
            return False

    def query(self, expression: str) -> list[Any]:
        """Return the series of an instant query.

        :raises AssertionError: if Prometheus refuses the query.
        """
        try:
            found = self.answer(f"/api/v1/query?query={quote(expression)}")
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from None
        series: list[Any] = found["data"]["result"]
        return series


@contextmanager
def prometheus_server(
    folder: Path, targets: Mapping[str, str], rules: Path | None = None
) -> Iterator[PrometheusServer]:
    """Start a Prometheus, and stop it at the end.

    :param folder: for its configuration and its data.
    :param targets: addresses to scrape, with the path of each.
    :param rules: file with alerts to load.
    """
    port = free_port()
    # JSON is YAML.
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [] if rules is None else [str(rules)],
        "scrape_configs": [
            {
                "job_name": f"warren{number or ''}",
                "metrics_path": path.partition("?")[0],
                "params": {"family": re.findall(r"family=(\w+)", path)},
                "static_configs": [{"targets": [address]}],
            }
            for number, (path, address) in enumerate(targets.items())
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(configuration))
    server = Child(
        [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=error",
        ],
        cwd=folder,
    )
    try:
        found = PrometheusServer(port)
        wait_until(lambda: found.ready() or not server.running, "Prometheus answers", 120)
        assert server.running, server.errors
        yield found
    finally:
        server.stop()


def queries_of(dashboard: Path) -> dict[str, str]:
    """Return the queries of a dashboard, with values for its variables, by title and number of the panel."""
    found: dict[str, str] = {}

    def walk(panels: list[Any]) -> None:
        for panel in panels:
            for number, target in enumerate(panel.get("targets", ())):
                if expression := target.get("expr"):
                    found[f"{panel.get('title', '')} ({panel['id']}.{number})"] = with_values(expression)
            walk(panel.get("panels", []))

    walk(json.loads(dashboard.read_text())["panels"])
    return found


def with_values(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression
