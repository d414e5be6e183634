"""Prefill here, decode there: a prompt's KV moves between two engines.

Read in this order: `handoff` (who may do what when), `manifest` (what is said), `channel` (how blocks travel),
`prefill` (the side that gives), `decode` (the side that takes).
"""
