"""Dispatch: finds a worker for a request and gets its answer.

Read: reservations (quota is reserved and settled here), acquisition/ (from the ranking to a placement), placement,
attempts (sending, retries), hedged_opening. charged_tokens says what a request is charged for: the worker's count,
or the gateway's own for an answer that was cut or abandoned; costs turns tokens into amounts of quota. dispatch
holds all parts.
"""
