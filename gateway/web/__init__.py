"""HTTP in, HTTP out. Read in this order: openai, bodies, exchange, boundary, handlers, admin."""
