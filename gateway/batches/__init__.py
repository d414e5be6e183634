"""Batches, worked off in the background through the pipeline that clients' requests take.

Read rows.py (a line of the input to a request), exchange.py (it, for the pipeline), patience.py (what is tried
again), results.py (what came of it, one line a row), run.py (one batch to its end), keeper.py (which batches are
this gateway's).
"""
