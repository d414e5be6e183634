"""Prefill/decode disaggregation: one engine computes a prompt, and its KV blocks move to another engine.

Read in this order: `handoff` (the states of a handoff), `messages` (what the two sides send each other), `channel`
(how blocks travel), `prefill` (the side that sends), `decode` (the side that receives).
"""
