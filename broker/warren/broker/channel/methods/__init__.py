"""AMQP methods of a channel, except publishes and acknowledgements; `method_dispatch` calls the right function."""
