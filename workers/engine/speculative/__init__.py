"""Speculative decoding: a cheap drafter proposes the next tokens, and the model verifies all of them in one step.

    plain        x -> y -> z -> ...            one step of the model for each token
    speculative  x -> drafts y' z' w'          one step computes what follows x, y', z' and w':
                      |  |  |                  y' and z' accepted, w' rejected: y, z and the right token after
                      y  z  not w' but v       them, three tokens for one step

A step of decoding is bound by reading weights, so a few more rows in it cost little. The output has exactly the
distribution of plain decoding with any drafter: `draw_step_tokens` of execution/token_drawing.py compares drafts
with the tokens that plain decoding draws, or judges them by sampling/rejection_sampling.py; tests prove it by
enumeration.

    ngram          drafts from earlier occurrences in the same text
    model_drafter  drafts of a smaller model, or of the first layers of the model itself
    medusa         drafts of heads on the last hidden state, in the tree of medusa_tree
    draft_kv       which positions a draft model has in its own KV
    loading        from the settings to a drafter

The interface of drafters is `scheduler.drafter`. In each step `scheduler.speculation` decides how many drafts each
sequence gets, and `execution.model_runner` calls the drafter and verifies its drafts. `fit_medusa` makes heads.
"""
