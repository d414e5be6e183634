"""Who suffers from whom: mixes of tenants under each queue policy, simulated and with real processes."""
