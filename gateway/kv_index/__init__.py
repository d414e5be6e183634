"""Which KV blocks workers hold: `feeds` follows their events, `feedback` learns from answers, `index_quota` bounds it."""
