"""Items of the list verbs under RabbitMQ's names."""
