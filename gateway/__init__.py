"""Floor 3: HTTP in, HTTP out; tenants, quotas, dispatch; wires everything.

Read in this order: pipeline, context, web/handlers, tenants, quotas, dispatch, telemetry, app, lifecycle, cli.
"""
