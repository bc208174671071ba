"""The bench: sends one arrival trace to a target over HTTP and keeps what came of every request.

Talks to the gateway and to engines as any client does; never imports the gateway.
"""
