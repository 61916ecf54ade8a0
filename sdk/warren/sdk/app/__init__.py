"""The `App` and its parts: lifecycle, health, statistics, middlewares, blocking facade, AsyncAPI document."""
