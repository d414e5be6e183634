"""Batches, worked off in the background through the pipeline that clients' requests take.

Read rows.py (a line of the input to a request), exchange.py (it, for the pipeline), patience.py (what is tried
again), lines.py (what came of it, one line a row), results.py (such lines on their way into the database), run.py
(one batch to its end), keeper.py (which batches are this gateway's).
"""
