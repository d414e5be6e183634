"""ToolDefinition calls in OpenAI's shape: `formats` are how models write them, `call_reader` and `call_parser` read that
while it comes, `plan` is what one request wants."""
