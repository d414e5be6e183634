"""Cells: groups of gateways that divide the tenants of one fleet, and share workers, quotas and the database.

Imported by wiring and web; it imports the queue and the fleet.
"""
