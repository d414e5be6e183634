"""Calculates what requests cost Redis and the gateways, and which layout of a fleet can handle them.

`demand` describes load and layout, `costs` has the measured costs of one request, `traffic` the load on Redis, and
`fleet_plan` the load of each part, with the `shares` of the busiest primary; `smallest_layout` searches for the
smallest layout that handles the load.
"""
