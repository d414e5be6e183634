"""`make chaos`: breaks one part after another under load, and checks the gateways' promises.

Read in this order: faults (the table), scene (the processes), load (the clients), promises (what must hold).
"""
