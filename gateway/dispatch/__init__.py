"""From an authenticated request to the worker that answers it.

Read in this order: catalogue, prompts, prefixes, fleet, loads, router, waiting_room, reservations, relay.
"""
