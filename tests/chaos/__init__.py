"""Breaks one part after the other under load, and holds the gateways to their promises. `make chaos`.

Read in this order: faults (the table), scene (who plays), load (the clients), promises (what must hold).
"""
