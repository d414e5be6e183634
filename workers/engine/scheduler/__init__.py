"""The scheduler: decides which tokens of which sequences the next step computes, without touching a tensor.

Read in this order: `sequence`, `plan`, `limits`, `policy` (ranks the sequences), `table_opener` (finds the cached
blocks of a prompt), `scheduler` (admits, preempts and plans each step); then, for speculative decoding, `drafter`,
`speculation`, `draft_length`, `step_cost`, `counters`.
"""
