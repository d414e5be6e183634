"""One queue and one account of loads for all gateways. Read keys, lua/queue.lua, store, membership, shared."""
