"""The jobs of `warren pipeline`, one module each."""
