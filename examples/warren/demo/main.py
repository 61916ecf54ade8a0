"""`warren demo orders`: runs the shop, kills its broker half-way, has Spark read the audit, and checks every order."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from warren.cli import pipeline as pipeline
from warren.core.errors import ExitStatus, UsageError
from warren.demo.orders import COLUMNS, SAMPLE_SIZE, Order, read_orders, sample
from warren.demo.replay import Plan, Record, replay
from warren.demo.services import BrokerProcess, chosen_store
from warren.demo.shop import AUDIT, Done, Shop
from warren.demo.verdict import MOST_LEFT_OUT, Verdict, judge
from warren.pipeline import durations
from warren.pipeline.errors import PipelineError
from warren.pipeline.spark_session import check_spark

SPAN = 50.0
"""Real seconds in which the orders are placed, at the least."""
ORDERS_A_SECOND = 150
REAL_TIMEOUT = 8.0
"""Real seconds that a customer has to pay, if --speed does not say otherwise."""
LEAST_REAL_TIMEOUT = 1.0
SETTLE_SECONDS = 60.0
"""How long the last decisions may take after the last payment and the last deadline."""


def main(arguments: Sequence[str]) -> int:
    """Run the demo. The table is on standard output, progress on standard error."""
    options = parser().parse_args(arguments)
    try:
        timeout = durations.parse(options.timeout)
    except ValueError as error:
        raise UsageError(f"--timeout: {error}") from None
    speed = options.speed or timeout.total_seconds() / REAL_TIMEOUT
    if timeout.total_seconds() / speed < LEAST_REAL_TIMEOUT:
        raise UsageError(
            f"--timeout {options.timeout} at --speed {speed:g} leaves {timeout.total_seconds() / speed:.2g} s of "
            f"real time to pay; choose a speed that leaves at least {LEAST_REAL_TIMEOUT:g} s"
        )
    check_spark()
    orders = sample() if options.file is None else read_orders(options.file)
    plan = Plan(max(SPAN, len(orders) / ORDERS_A_SECOND), speed, timeout)
    console = Console(stderr=True, highlight=False)
    source = options.file or f"a sample of {len(orders):,}"
    console.print(
        f"orders: {len(orders):,} from {source}, placed within {plan.span:.0f} s; "
        f"{durations.format_duration(timeout.total_seconds())} to pay are {plan.time_to_pay.total_seconds():g} s"
    )
    started = time.monotonic()
    log_to(options.out)
    try:
        verdict = asyncio.run(work(orders, plan, options.crash, options.out, console))
    except PipelineError as error:
        print(f"warren demo: {error}", file=sys.stderr)
        return ExitStatus.IO
    show(verdict, options.out, time.monotonic() - started)
    return ExitStatus.SUCCESS if verdict.passed else ExitStatus.FAILED


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="warren demo", description="Warren at work.")
    jobs = parser.add_subparsers(required=True, metavar="JOB")
    job = jobs.add_parser(
        "orders",
        help="the orders that are not paid in time are cancelled",
        description="Places, collects and cancels orders through every component, kills the broker half-way, has "
        "Spark read what happened, and checks each order. Exits with 1 if one came out wrong.",
    )
    job.add_argument(
        "--file",
        type=Path,
        help=f"CSV with the columns {', '.join(COLUMNS)}; without it a seeded sample of {SAMPLE_SIZE:,}",
    )
    job.add_argument(
        "--timeout", default="30m", help="time to pay, in the file's time (default: %(default)s)"
    )
    job.add_argument(
        "--speed",
        type=positive,
        help=f"how much faster time passes (default: so that the time to pay takes {REAL_TIMEOUT:g} s)",
    )
    job.add_argument("--no-crash", dest="crash", action="store_false", help="do not kill the broker half-way")
    job.add_argument(
        "--out",
        type=Path,
        default=Path("demo-out"),
        help="folder for Parquet files, summary and report (default: %(default)s)",
    )
    return parser


def positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError
    return number


def log_to(out: Path) -> None:
    """What the components log goes to a file; the terminal shows the progress."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(out / "demo.log", mode="w")
    except OSError as error:
        raise UsageError(
            f"cannot write to {out}: {error.strerror}; choose another folder with --out"
        ) from None
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.getLogger("warren").addHandler(handler)
    logging.getLogger("warren").setLevel(logging.INFO)


async def work(orders: list[Order], plan: Plan, crash: bool, out: Path, console: Console) -> Verdict:
    """The whole story, from an empty folder to the verdict."""
    with tempfile.TemporaryDirectory(prefix="warren-demo-") as name:
        folder = Path(name)
        broker = BrokerProcess(folder)
        try:
            async with chosen_store(folder) as (store, described):
                console.print(f"store: {described}")
                await broker.start()
                shop = Shop(broker.url, plan.time_to_pay, store)
                async with shop.app:
                    record = await sell(orders, plan, shop, broker, crash, console)
            outcomes = await asyncio.to_thread(count, broker.url, plan.timeout, out, console)
        finally:
            await broker.stop()
    return judge(orders, outcomes, plan, record)


async def sell(
    orders: list[Order], plan: Plan, shop: Shop, broker: BrokerProcess, crash: bool, console: Console
) -> Record:
    """Replay the file and wait until every order has been decided; the progress shows what the handlers did."""
    payments = [order for order in orders if order.delay is not None]
    with Progress(
        TextColumn("{task.description:<14}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=not console.is_terminal,
    ) as progress:
        bars = {
            "placed": progress.add_task("placed", total=len(orders)),
            "paid": progress.add_task("paid", total=len(payments)),
            "cancelled": progress.add_task("cancelled", total=None),
        }

        def refresh() -> None:
            done = shop.done
            progress.update(bars["placed"], completed=len(done.placed))
            progress.update(bars["paid"], completed=len(done.paid_in_time) + len(done.paid_late))
            progress.update(bars["cancelled"], completed=len(done.cancelled))

        async def watch() -> None:
            while True:
                refresh()
                await asyncio.sleep(0.2)

        watching = asyncio.create_task(watch())
        try:
            record = await replay(
                orders,
                plan,
                shop,
                broker,
                crash=crash,
                progress=lambda step: progress.console.print(step),
            )
            try:
                async with asyncio.timeout(plan.time_to_pay.total_seconds() + SETTLE_SECONDS):
                    while not settled(len(orders), len(payments), shop.done):
                        shop.changed.clear()
                        await shop.changed.wait()
            except TimeoutError:
                progress.console.print("not every order was decided in time; what there is will be counted")
            refresh()
        finally:
            watching.cancel()
    return record


def settled(orders: int, payments: int, done: Done) -> bool:
    """Each order is cancelled or paid in time, and each payment was taken one way or the other."""
    return (
        len(done.placed) >= orders
        and len(done.paid_in_time) + len(done.cancelled) >= orders
        and len(done.paid_in_time) + len(done.paid_late) >= payments
    )


def count(url: str, timeout: timedelta, out: Path, console: Console) -> Mapping[str, str]:
    """Have Spark read the audit stream; the outcome of each order as it found it."""
    with console.status("Spark") as status:
        words = ["--source", url, "--stream", AUDIT.name, "--out", str(out)]
        options = pipeline.parse(["order-timeouts", *words])
        options.timeout = timeout
        _, told = pipeline.run(options, lambda step: status.update(f"Spark: {step}"))
    console.print(f"spark: read {told.place} in {told.seconds:.1f} s")
    table = pyarrow.parquet.read_table(out / "orders", columns=["order_id", "outcome"])
    return dict(zip(table["order_id"].to_pylist(), table["outcome"].to_pylist(), strict=True))


def show(verdict: Verdict, out: Path, seconds: float) -> None:
    """The table that ends it, and what is wrong if anything is."""
    share = verdict.left_out / verdict.orders
    table = Table(title="Every order accounted for" if verdict.passed else "Not every order is right")
    table.add_column("orders")
    table.add_column("number", justify="right")
    table.add_row("in the file", f"{verdict.orders:,}")
    table.add_row("decided as their times say", f"{verdict.right:,}")
    table.add_row(
        "left out: paid within a minute of the timeout, or held up so long", f"{verdict.near_timeout:,}"
    )
    table.add_row("left out: due while the broker was down", f"{verdict.in_outage:,}")
    table.add_row("wrong, lost or both paid and cancelled", f"{len(verdict.wrong):,}")
    for outcome, number in sorted(verdict.outcomes.items()):
        table.add_row(f"  {outcome.replace('_', ' ')}", f"{number:,}")
    console = Console(highlight=False)
    console.print(table)
    console.print(f"report: {out / 'report.html'}   {seconds:.0f} s in all")
    for order_id, what in list(verdict.wrong.items())[:10]:
        print(f"warren demo: order {order_id} {what}", file=sys.stderr)
    if share > MOST_LEFT_OUT:
        print(
            f"warren demo: {share:.0%} of the orders could not be judged; at most {MOST_LEFT_OUT:.0%} may be left out",
            file=sys.stderr,
        )
