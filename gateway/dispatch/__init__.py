"""Finds a worker for a request and gets its answer.

Read: reservations (quota is reserved and settled here), acquisition/ (from the ranking to a placement), placement,
attempts (sending, retries), hedged_opening. own_count counts what an abandoned or cut stream is charged for, where
the worker has not said it; costs turns tokens into amounts of quota. dispatch holds all parts.
"""
