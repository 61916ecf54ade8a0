"""Both brokers: Debian's RabbitMQ, which judges, and Warren in the version that it follows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.inprocess import InProcess


@pytest.fixture(scope="session")
def warren() -> Iterator[InProcess]:
    """A Warren that does as RabbitMQ 3.10 does."""
    with InProcess() as broker:
        yield broker
