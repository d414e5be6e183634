"""Ranks the workers for a request; gateway/dispatch/acquisition takes one of them.

`router` calls the routing policy (by default `rank` of policies/routing/cost.py) with the part of the prompt that
each worker holds. `shortlist` leaves out most workers of a large fleet, `shadow_policy` compares a second policy
with the first. Pairs of a prefill and a decode worker are ranked by policies/routing/disaggregation.py.
"""
