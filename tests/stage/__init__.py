"""The whole as processes of their own, for long and rough runs: Valkey, workers, gateways. See chaos and soak."""
