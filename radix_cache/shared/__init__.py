"""The prefix index that all gateways share: one tree in Redis, and a replica of it in the memory of every process.

Read in this order: keys, lua/tree.lua, records, node, copy, store, reader, index, keeper; then what looks at it
from outside: stored, census, drawing, audit, repair.
"""
