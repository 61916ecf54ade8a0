"""Runs of the log that a test leaves open are ended with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.store.node import Node


@pytest.fixture(autouse=True)
def end_nodes() -> Iterator[None]:
    yield
    for node in list(Node.running):
        node.kill()
