"""`warren ctl`: a broker's operator at the command line, over the broker's control socket.

It knows the socket and nothing of the broker behind it, and imports the standard library only, so that it starts fast.
"""
