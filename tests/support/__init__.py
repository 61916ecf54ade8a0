"""What tests stand on: child processes, private servers, a fault proxy, hand-written AMQP frames."""
