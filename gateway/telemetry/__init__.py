"""What happened: metrics, traces, and one record per request. Read: record, metrics, tracing, logs."""
