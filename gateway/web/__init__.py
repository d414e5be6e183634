"""HTTP in, HTTP out. Read in this order: openai, sse, sinks, handlers, admin."""
