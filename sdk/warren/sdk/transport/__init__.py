"""Connections to brokers. The only package that knows aio-pika and aiormq."""
