"""Exchanges, queues and bindings: values, declaration, comparison with a broker, plans."""
