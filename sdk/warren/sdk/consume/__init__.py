"""ConsumeTelemetry: subscriptions, workers, dispatch to handlers, dependencies, retries."""
