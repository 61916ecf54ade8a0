"""Demo of all components of Warren: orders are placed, paid or cancelled, and every outcome is checked."""
