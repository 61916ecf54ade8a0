"""`warren ctl`: management of a broker over its control socket.

It does not import the broker, but only the standard library, so that it starts fast.
"""
