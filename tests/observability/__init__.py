"""The alerts and the dashboard on a real Prometheus: `make test-observability`."""
