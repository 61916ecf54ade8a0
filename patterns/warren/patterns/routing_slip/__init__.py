"""Routing slips: a message that carries its own itinerary, and goes back along it when a step fails."""

from warren.patterns.routing_slip.itinerary import SlipEnded
from warren.patterns.routing_slip.routing_slip import Abort, RoutingSlips, RoutingSlipStatistics, StepHandler

__all__ = ["Abort", "RoutingSlipStatistics", "RoutingSlips", "SlipEnded", "StepHandler"]
