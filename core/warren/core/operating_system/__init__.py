"""System calls that Linux, macOS or Windows lacks, behind one interface for all three.

Each has a portable way that takes its place where it is missing.
`portable_switch` selects the portable ways also where they are not needed, so that tests run them on Linux.
"""
