"""Chooses workers: `router` ranks them by the routing policy; `shadow_policy` compares a second policy with it."""
