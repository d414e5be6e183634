"""The paths on which a tenant reads its own use: usage_and_limits, and finished_requests; own_usage_handlers."""
