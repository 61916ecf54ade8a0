"""Checks of an App against a broker: what it declares and the broker lacks or has otherwise, and its risks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from warren.cli.doctor.finding import Check, Finding
from warren.sdk.extend import not_included
from warren.sdk.planning import Kind, Plan, Status

MISSING: Final = Check("E601", "missing-topology", "`warren topology apply` declares it", (), lambda _: ())
DIFFERENT: Final = Check(
    "E602", "different-topology", "`warren topology plan` says what to do", (), lambda _: ()
)
LOSS: Final = Check("W603", "risk-of-loss", "", (), lambda _: ())
OTHER_RISK: Final = Check("I604", "risk", "", (), lambda _: ())
NOT_COMPARED: Final = Check("I605", "not-compared", "", (), lambda _: ())
NOT_INCLUDED: Final = Check(
    "W606",
    "not-included",
    "include it, app.include(...); if another process does, or app.include_now later, app.leave_out(...)",
    (),
    lambda _: (),
)

APP_CHECKS: Final = (MISSING, DIFFERENT, LOSS, OTHER_RISK, NOT_COMPARED, NOT_INCLUDED)


def compare(plan: Plan) -> Iterator[Finding]:
    """Yield a finding for each item of an App's topology that the broker lacks or has otherwise, and for each risk.

    :param plan: comparison of the App's topology with the broker.
    """
    for step in plan.steps:
        if step.status is Status.MISSING:
            yield MISSING.finding(
                step.name, "the App declares it, and the broker does not have it", step.advice
            )
        elif step.status is Status.DIFFERS:
            differences = "; ".join(map(str, step.differences)) or "the broker refuses the declaration"
            yield DIFFERENT.finding(step.name, differences, step.advice)
    unknown = [step for step in plan.of(Status.UNKNOWN) if not getattr(step.item, "exclusive", False)]
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        yield NOT_COMPARED.finding(f"{unknown[0].name}{more}", "could not be compared", unknown[0].advice)
    for risk in plan.risks:
        kind = LOSS if risk.kind is Kind.LOSS else OTHER_RISK
        yield kind.finding(risk.subject, risk.text, risk.advice)


def forgotten() -> Iterator[Finding]:
    """Yield a finding for each component and router that the App's modules make and no App includes."""
    for each in not_included():
        evidence = f"was made in {each.place}, and no App includes it: {each.consequence}"
        yield NOT_INCLUDED.finding(each.title, evidence, NOT_INCLUDED.advice)
