"""Cells: groups of gateways that divide the tenants of one fleet, and share workers, quotas and the database.

living_cells.py lists the cells that are alive; a tenant belongs to one of them by policies/cell_ownership.py.
hop.py signs the requests that gateway/web/cell_relay.py sends to another cell. cell_loads.py exchanges the loads of
shared workers and the progress of each cell's turns (cell_report.py has the message), home_workers.py marks the
workers that a cell prefers, and own_groups.py names the caches that a cell follows.
"""
