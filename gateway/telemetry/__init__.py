"""Telemetry: one record per request, and the metrics, traces and logs made from it.

`request_record` is the account of one request, filled in while it runs. When the request has ended, observers read
the record: `metrics` counts it for Prometheus, `tracing` turns it into OpenTelemetry spans (`trace` has their ids),
`overview` sums it up for the console. `gauge_collector` reads gauges at each scrape, and `exposition` writes all
metrics as text in slices. `access_log` writes one line for each request; `logs` sets up all other log lines.
"""
