"""Telemetry: one record per request, and the metrics, traces and logs made from it.

`progress` is the account of one request while it runs (`request_events`: its wait, its failed attempts; `mark`
ends one step of its trace, and the next begins), and makes its `request_record` at the end (`outcome`: how it
ended). Observers read the record: `metrics` counts it for Prometheus, in counters and in the buckets of its
`histogram`s (`request_families` names the metrics; `gen_ai_metrics` are OpenTelemetry's), `tracing` hands it on
if it is traced (`trace` has its ids), `span_export` exports it in the background as OpenTelemetry spans, which
`request_spans` makes (`span_attributes` has their attributes, `batch_trace` those of batches), `overview` sums it
up for the console. `metric_families` are gauges, counters and histograms that are read at each scrape
(`batch_counts`, `build_info`), and `exposition` writes all metrics as text in slices. `access_log` writes one
line for each request; `logs` sets up all other log lines.
"""
