"""Report of a cluster run in Markdown: what it did, and how long things took."""

from __future__ import annotations

from tests.faults.cluster.node_faults import NodeFault
from tests.faults.cluster.run import ClusterRun


def report_of(run: ClusterRun, count: int, seed: int, seconds: float) -> str:
    """Return the tables of a run without a broken guarantee."""
    plain = run.plain
    lines = [
        f"{count} faults, seed {seed}, {seconds / 60:.0f} minutes, RabbitMQ {run.cluster.version}, three nodes. "
        "No confirmed message was lost, and no effect that must happen once happened twice.",
        "",
        f"Plain publishes, judged by the checker of the chaos runs: {plain.tally.confirmed:,} confirmed, "
        f"{plain.tally.delivered:,} handled, {plain.tally.redelivered:,} of them redelivered; "
        f"{len(plain.refused):,} publishes raised an error.",
        "",
        "| Wait, in seconds | Number | p50 | p99 | Longest |",
        "|---|---|---|---|---|",
        f"| publish until its confirm, whole run | {plain.confirms.row()} |",
        *(
            f"| publish until its confirm, rounds with a {fault.value} | {run.fault_waits[fault].row()} |"
            for fault in NodeFault
        ),
        f"| publish until its handler, whole run | {plain.deliveries.row()} |",
        *(
            f"| healing of a {fault.value} until all work was done | {run.recoveries[fault].row()} |"
            for fault in NodeFault
        ),
        "",
        "| Load | Started | Refused | Effects | Repeated | Start p50 / p99 / longest | Effect p50 / p99 / longest |",
        "|---|---|---|---|---|---|---|",
    ]
    for load in run.all_loads:
        waits = [
            " / ".join(f"{durations.percentile(percent):.3f}" for percent in (50, 99, 100))
            for durations in (load.starts, load.effect_waits)
        ]
        repeated = f"{load.repeated} (must be 0)" if load.once else str(load.repeated)
        lines.append(
            f"| {load.name} | {load.started:,} | {load.refused} | {len(load.effects):,} | {repeated} | {waits[0]} | "
            f"{waits[1]} |"
        )
    errors = [f"| {load.name} | {text} | {n} |" for load in run.all_loads for text, n in load.errors.items()]
    lines += ["", "| Load | Error | Times |", "|---|---|---|", *(errors or ["| none | | |"])]
    lines += ["", "| Log event | Times |", "|---|---|"]
    lines += [f"| `{event}` | {n} |" for event, n in run.logs.events.most_common()]
    return "\n".join(lines) + "\n"
