"""docs/defaults.md: every default in its table is the default of the code."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from warren.sdk import App, CircuitBreaker, Exchange, Queue, Retry
from warren.sdk.consume.batches import BATCH_SIZE, BATCH_WITHIN
from warren.sdk.consume.consumer_options import CONCURRENCY, PREFETCH_PER_HANDLER
from warren.sdk.durations import duration
from warren.sdk.publish.publisher_confirms import WINDOW_BYTES
from warren.sdk.transport.session import HEARTBEAT_SECONDS

PAGE = Path(__file__).parents[2] / "docs" / "defaults.md"


def default(function: object, name: str) -> float:
    value = inspect.signature(function).parameters[name].default  # type: ignore[arg-type]
    assert isinstance(value, int | float)
    return value


def seconds(value: float) -> str:
    return f"{value:g} s" if value >= 1 else f"{value * 1000:g} ms"


def written(duration: object) -> str:
    """Return a duration such as `50ms` as the page writes it."""
    return re.sub(r"(?<=\d)(?=[a-z])", " ", str(duration))


def of_retry(name: str) -> str:
    return written(inspect.signature(Retry).parameters[name].default)


def queue(values: Queue) -> str:
    arguments = values.wire_arguments()
    limit = arguments.get("x-delivery-limit")
    words = [
        "durable" + (" quorum queue" if arguments["x-queue-type"] == "quorum" else ""),
        f"delivery limit {limit}" if limit else "no delivery limit",
        f"{arguments.get('x-dead-letter-strategy', 'at-most-once')} dead-lettering"
        f" to `{arguments['x-dead-letter-exchange']}`",
    ]
    if "x-overflow" in arguments:
        words.append(f"`{arguments['x-overflow']}`")
    assert values.durable
    return ", ".join(words)


def test_the_page_lists_the_defaults_of_the_code() -> None:
    exchange, breaker = Exchange("any"), CircuitBreaker()
    code = {
        "unconfirmed messages in flight": f"{default(App, 'window'):,}",
        "bodies of unconfirmed messages": f"{WINDOW_BYTES // 2**20} MiB",
        "publish deadline": seconds(default(App.publish, "timeout")),
        "call deadline": seconds(default(App.call, "timeout")),
        "replies to calls": f"`{inspect.signature(App).parameters['replies'].default}`: to a reply queue of the App",
        "time for the first connection": seconds(default(App, "connect_timeout")),
        "start of an App": (
            f"`{inspect.signature(App).parameters['start'].default}`: until the broker has accepted every consumer"
        ),
        "concurrent handlers of a queue": str(CONCURRENCY),
        "prefetch of a queue": f"{PREFETCH_PER_HANDLER} × handlers",
        "batch of a handler": f"{BATCH_SIZE} messages or {seconds(BATCH_WITHIN.total_seconds())}",
        "circuit breaker": f"{breaker.failures} failures in a row, then a pause of"
        f" {seconds(duration(breaker.pause).total_seconds())}",
        "attempts in the process": str(default(Retry, "attempts")),
        "waits between attempts": f"random below {of_retry('first_wait')}, doubling up to {of_retry('longest_wait')}",
        "batch of `publish_batches`": f"{default(App.publish_batches, 'count')} messages or"
        f" {seconds(default(App.publish_batches, 'within'))}",
        "grace period of a shutdown": seconds(default(App, "grace")),
        "threads for plain handlers (`def`)": str(default(App, "threads")),
        "a handler that blocks the event loop is logged after": seconds(default(App, "stall_threshold")),
        "wait before a reconnect": f"random below {seconds(default(App, 'first_retry'))}, doubling up to"
        f" {seconds(default(App, 'longest_retry'))}",
        "heartbeat": f"{HEARTBEAT_SECONDS} s",
        "queue": queue(Queue("any")),
        "classic queue": queue(Queue("any", type="classic")),
        "existing queue or exchange with other arguments": (
            f"`{inspect.signature(App).parameters['mismatch'].default}`: an error that names the arguments"
        ),
        "exchange": f"{'durable' if exchange.durable else 'transient'} {exchange.type} exchange",
    }
    rows = re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|", PAGE.read_text(), re.MULTILINE)[1:]
    shown = dict(rows)
    assert {name: text for name, text in shown.items() if name in code} == code
    # These two have no value to compare; tests of their own hold them.
    assert set(shown) - set(code) == {"message", "acknowledgement"}
