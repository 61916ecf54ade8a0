"""Recording of life-cycle events (publishes, deliveries, acknowledgements and so on) in an event stream."""
