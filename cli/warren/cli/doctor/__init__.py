"""`warren doctor`: checks of a broker and of an App against it; docs/doctor.md lists their codes."""
