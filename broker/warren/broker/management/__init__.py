"""Management of a broker: control socket, the operations (verbs) that it offers, definitions in RabbitMQ's format."""
