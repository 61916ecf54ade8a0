"""Checks of exchanges and policies: exchanges without bindings, and policies that match nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from warren.cli.doctor.finding import Observation, Source, check
from warren.cli.doctor.snapshot import ExchangeState, PolicyState, Samples, Snapshot
from warren.core.name_pattern import InvalidPattern, NamePattern


@check(
    "W201",
    "unbound-exchange",
    Source.EXCHANGES,
    advice="bind a queue to it, give it an alternate exchange, or stop the publisher; publish with mandatory to notice",
)
def unbound_exchange(samples: Samples) -> Iterator[Observation]:
    """Find exchanges without bindings to which somebody publishes: the messages are dropped."""
    for exchange in _unbound(samples.last):
        if exchange.published:
            yield (
                _subject(exchange),
                f"nothing is bound to it, and {exchange.published} messages were published to it",
            )


@check(
    "I202",
    "exchange-without-bindings",
    Source.EXCHANGES,
    advice="bind a queue to it if somebody publishes to it, else delete it",
)
def exchange_without_bindings(samples: Samples) -> Iterator[Observation]:
    """Find exchanges without bindings on a broker that does not count what is published to them."""
    for exchange in _unbound(samples.last):
        if exchange.published is None:
            yield (
                _subject(exchange),
                "nothing is bound to it: what is published to it is dropped (this broker does not count it)",
            )


@check(
    "W301",
    "policy-matches-nothing",
    Source.POLICIES,
    Source.QUEUES,
    Source.EXCHANGES,
    advice="correct its pattern (a regular expression: ^orders[.]) or --apply-to, or clear it",
)
def policy_matches_nothing(samples: Samples) -> Iterator[Observation]:
    """Find policies whose pattern matches no queue and no exchange that they are for."""
    for policy in samples.last.policies:
        try:
            pattern = NamePattern(policy.pattern)
        except InvalidPattern:
            continue  # RabbitMQ's regular expressions know more.
        if not any(pattern.found_in(name) for name in _candidates(policy, samples.last)):
            yield (
                f"policy {policy.name}",
                f"its pattern {policy.pattern!r} matches none of the {policy.applies_to}",
            )


@check(
    "I302",
    "shadowed-policy",
    Source.POLICIES,
    Source.QUEUES,
    Source.EXCHANGES,
    advice="only the policy with the highest priority applies: merge the two, or raise the priority of this one",
)
def shadowed_policy(samples: Samples) -> Iterator[Observation]:
    """Find policies that match objects, but apply to none, because another policy has precedence for each."""
    applied = {each.policy for each in samples.last.queues} | {each.policy for each in samples.last.exchanges}
    for policy in samples.last.policies:
        try:
            pattern = NamePattern(policy.pattern)
        except InvalidPattern:
            continue
        matched = [name for name in _candidates(policy, samples.last) if pattern.found_in(name)]
        if matched and policy.name not in applied:
            yield (
                f"policy {policy.name}",
                f"matches {len(matched)} names, such as {matched[0]}, but another policy has precedence for each",
            )


def _unbound(snapshot: Snapshot) -> Iterator[ExchangeState]:
    sources = {each.source for each in snapshot.bindings}
    definitions = {each.name: each.definition for each in snapshot.policies}
    for exchange in snapshot.exchanges:
        by_policy = definitions.get(exchange.policy, {}).get("alternate-exchange")
        predeclared = not exchange.name or exchange.name.startswith("amq.")
        if predeclared and not exchange.published:
            continue
        if exchange.name and exchange.name not in sources and not (exchange.alternate or by_policy):
            yield exchange


def _candidates(policy: PolicyState, snapshot: Snapshot) -> Iterable[str]:
    kind = policy.applies_to
    if kind != "exchanges":
        # RabbitMQ: queues, classic_queues, quorum_queues, streams.
        wanted = kind.removesuffix("s").removesuffix("_queue")
        for queue in snapshot.queues:
            if kind in ("queues", "all") or queue.type == wanted:
                yield queue.name
    if kind in ("exchanges", "all"):
        yield from (each.name for each in snapshot.exchanges if each.name)


def _subject(exchange: ExchangeState) -> str:
    return f"exchange {exchange.name}"
