"""Structured output: grammars that constrain which tokens an answer may have.

`grammar` is the grammar of a request, `compiler` turns it into a matcher, and `matcher` is the interface by
which the engine masks tokens.
"""
