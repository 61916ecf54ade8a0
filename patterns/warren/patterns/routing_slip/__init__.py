"""Routing slips: a message carries the list of its steps; when a step fails, the executed ones are compensated in
reverse order."""

from warren.patterns.routing_slip.routing_slip import (
    AbortRoutingSlip,
    RoutingSlips,
    RoutingSlipStatistics,
    RoutingSlipStep,
)
from warren.patterns.routing_slip.rules import RoutingSlipEnded

__all__ = ["AbortRoutingSlip", "RoutingSlipEnded", "RoutingSlipStatistics", "RoutingSlipStep", "RoutingSlips"]
