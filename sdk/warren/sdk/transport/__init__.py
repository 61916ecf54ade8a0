"""Connections to brokers: reconnecting, host failover, channels. The only package that imports aio-pika and aiormq."""
