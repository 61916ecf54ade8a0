"""Items (columns) of the list verbs, under RabbitMQ's names."""
