"""One queue and one account of loads for all gateways. Read keys.py, lua/queue.lua, store.py, shared.py."""
