"""What an answer may look like: `matcher` is what the engine asks of a grammar, `compiler` makes one of a text."""
