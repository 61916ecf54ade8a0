"""Routing slips: a message carries its itinerary, and goes back along it when a step fails."""

from warren.patterns.routing_slip.routing_slip import (
    AbortRoutingSlip,
    RoutingSlips,
    RoutingSlipStatistics,
    RoutingSlipStep,
)
from warren.patterns.routing_slip.rules import RoutingSlipEnded

__all__ = ["AbortRoutingSlip", "RoutingSlipEnded", "RoutingSlipStatistics", "RoutingSlipStep", "RoutingSlips"]
