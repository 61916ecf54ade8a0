"""One AMQP channel: publishes, confirms, deliveries, transactions, methods."""
