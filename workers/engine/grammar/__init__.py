"""Structured output: grammars that constrain which tokens an answer may have.

`grammar` is the grammar of a request, `compiler` turns it into a matcher (by llguidance, see `guidance`), and
`matcher` is the interface by which the engine masks tokens. `queue` compiles for an event loop. `check_process`
runs `grammar_check`, which can be killed when a grammar takes too long.

The masks of a step are made by workers/engine/execution/step_sampling_rows.py and applied by `_mask` of
workers/engine/sampling/processors.py; scheduler/sequence.py beside that advances the matcher by each kept token.
"""
