"""Structured output: grammars that constrain which tokens an answer may have.

`grammar` is a grammar as a request brings it, `compiler` turns it into a matcher, and `matcher` is the interface by
which the engine masks tokens.
"""
