"""The servers that tests talk to: the broker under test, a private Redis and PostgreSQL, RabbitMQ."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer

from tests.support import tiers
from tests.support.broker_behaviour import Behaviour, behaviour
from tests.support.broker_process import PATIENT, BrokerProcess
from tests.support.postgres import postgres_server
from tests.support.rabbitmq import VERSIONS, RabbitMQ, installed, rabbitmq_server
from tests.support.rabbitmq_cluster import rabbitmq_cluster
from tests.support.raw_client import RawClient
from tests.support.redis import redis_server
from tests.support.sharing import SLOW, SparkAwareScheduling

if TYPE_CHECKING:
    from warren.testing import Warren

# Warren's pytest plugin brings `--amqp-url`; here it means: run the tests of any broker, and no others, against this one,
# and `rabbitmq` starts Debian's, of the version that `--compat` says; `amqp://cluster` starts three nodes of RabbitMQ 4.3.
# Without it all tests of the tier run, with a `warren broker`.

CLUSTER = "amqp://cluster"
"""Value of `--amqp-url` for a cluster of three RabbitMQ nodes. Tests talk to one node; its queues lead on all of them."""


# A machine that stands still makes one example slow.
settings.register_profile(
    "warren", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("warren")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        choices=[tier.name.lower() for tier in tiers.Tier],
        default="all",
        help="run the tests of this tier and of those below it (tests/support/tiers.py)",
    )
    parser.addoption(
        "--compat",
        choices=VERSIONS,
        default="3.10",
        help="version of the RabbitMQ that tests start, and that Warren is compared with",
    )
    parser.addoption(
        "--event-loop",
        choices=["asyncio", "uvloop"],
        default="asyncio",
        help="event loop of the tests and of all that runs in their process",
    )


def pytest_configure(config: pytest.Config) -> None:
    tiers.choose(config.getoption("--tier"))
    if config.getoption("--event-loop") == "uvloop":
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    in_control_of_workers = bool(config.getoption("numprocesses", None)) and not hasattr(
        config, "workerinput"
    )
    if not in_control_of_workers:
        config.pluginmanager.register(tiers.ProcessGuard())


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out modules whose tests are all above the chosen tier: to import them takes each process seconds."""
    is_module = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return (is_module and tiers.tier_of_module(collection_path.read_text()) > tiers.chosen()) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is above the chosen tier; with `--amqp-url`, what starts a broker of its own. Slow files first."""
    chosen = tiers.chosen()
    counts: Counter[str] = Counter()
    selected = [
        item for item in items if tiers.tier_of(item) <= chosen and not tiers.is_sampled_out(item, counts)
    ]
    if config.getoption("--amqp-url") is not None:
        selected = [
            item for item in selected if {"amqp_url", "rabbitmq"} & set(getattr(item, "fixturenames", ()))
        ]
    kept = set(selected)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = sorted(selected, key=lambda item: not item.nodeid.startswith(SLOW))


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of garbage collections: there is much of it, and it stays."""
    gc.collect()
    gc.freeze()


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it runs in the background so, and what tests start would be deaf to an interrupt as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape lone surrogates in captured output: a worker process cannot send them, and would end."""
    report = yield
    report.sections = [
        (title, text.encode("utf-8", "backslashreplace").decode()) for title, text in report.sections
    ]
    return report


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SparkAwareScheduling | None:
    return SparkAwareScheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def starts_processes() -> None:
    """Mark tests as starting a process: each fixture that does requests this one. They are not in tier `check`."""


@pytest.fixture(scope="session")
def amqp_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of the broker under test: `--amqp-url`, else that of a `warren broker` of this session."""
    given: str | None = request.config.getoption("--amqp-url")
    if given == CLUSTER:
        with rabbitmq_cluster(configuration=["queue_leader_locator = balanced"]) as cluster:
            yield cluster.nodes[0].url
        return
    if given is not None:
        yield request.getfixturevalue("rabbitmq").url if given == "rabbitmq" else given
        return
    with BrokerProcess(tmp_path_factory.mktemp("broker"), *PATIENT) as broker:
        yield broker.url


@pytest.fixture(scope="session")
def server(amqp_url: str) -> Behaviour:
    """Return the behaviour of the broker under test where brokers differ on purpose."""
    with RawClient(amqp_url) as peer:
        peer.greet()
        return behaviour(peer.server)


@pytest.fixture
def warren(warren: Warren) -> Warren:
    """Return the plugin's fixture with a longer patience, as the machine may be busy with other tests."""
    warren.patience = 60.0
    return warren


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Run a `warren broker` for one test, which may kill it and start it again."""
    with BrokerProcess(tmp_path / "broker", *PATIENT) as process:
        yield process


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of a private, empty redis-server that lives as long as the session."""
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """Return the URL of a private PostgreSQL that lives as long as the session."""
    with postgres_server() as server:
        yield server.url


@pytest.fixture(scope="session")
def rabbitmq(request: pytest.FixtureRequest) -> Iterator[RabbitMQ]:
    """Debian's RabbitMQ of the version `--compat`, private, as long as the session lasts; skips where it is missing."""
    version: str = request.config.getoption("--compat")
    if not installed(version):
        pytest.skip(f"RabbitMQ {version} is not installed")
    with rabbitmq_server(plugins=["rabbitmq_management"], version=version) as server:
        yield server
