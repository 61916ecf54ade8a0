"""Shovels: they move messages from a queue or exchange to another one, of this broker or of others.

https://www.rabbitmq.com/docs/shovel. Nothing of this package is imported until a shovel is defined.
"""
