"""Command line of Warren: one module for each command. A command imports its component only when it runs."""
