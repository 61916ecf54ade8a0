"""The App: its life cycle, health, statistics, middlewares and blocking facade."""
