"""The whole product as processes, for tests, chaos and soak: Valkey, PostgreSQL, workers, gateways."""
