"""Virtual hosts: contents, registry, settings, declarations."""
