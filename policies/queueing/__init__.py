"""Queue policies: whose turn it is. One file each; protocol.py has the promise."""
