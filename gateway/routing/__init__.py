"""Ranks the workers for a request; gateway/dispatch/acquisition takes one of them.

`router` asks the routing policy (by default `rank` of policies/routing/cost.py), with what each worker holds of the
prompt. `shortlist` leaves out most workers of a large fleet, `shadow_policy` compares a second policy with the
first. Pairs of a prefill and a decode worker are ranked by policies/routing/disaggregation.py.
"""
