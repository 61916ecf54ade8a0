"""Consuming: subscriptions, tasks of handlers, dispatch to handlers, dependencies, retries."""
