"""The main job: orders are placed, paid or cancelled through every component of Warren, and the books are checked."""
