"""Routing policies: which worker serves a request. One file each; protocol.py has the promise."""
