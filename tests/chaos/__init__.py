"""`make chaos`: break one part after the other under load, and check what the gateways promise.

Read in this order: faults (the table), scene (the processes), load (the clients), promises (what must hold).
"""
