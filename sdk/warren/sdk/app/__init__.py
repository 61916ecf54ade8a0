"""The App: lifecycle, health, statistics, middlewares, blocking facade, AsyncAPI document."""
