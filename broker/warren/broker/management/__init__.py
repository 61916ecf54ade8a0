"""Management of a broker: control socket, the operations that it offers (verbs), and definitions in RabbitMQ's format."""
