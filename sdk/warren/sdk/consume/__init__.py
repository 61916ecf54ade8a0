"""Consuming: subscriptions, workers, dispatch to handlers, dependencies, retries."""
