"""The operators' API, /admin/v1. Read: call, gate; resources, keys, reports, operators; openapi."""
