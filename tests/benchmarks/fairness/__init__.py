"""Isolation between tenants: mixes of tenants under each queue policy, simulated and with real processes."""
