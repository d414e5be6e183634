"""Speculative decoding: somebody cheap guesses the next tokens, and the model checks all of them in one step.

    plain        x -> y -> z -> ...            one step of the model for each token
    speculative  x -> guess y' z' w'           one step computes what follows x, y', z' and w':
                      |  |  |                  y' right, z' right, w' wrong: y, z and the right one after them,
                      y  z  not w' but v       three tokens for one step

A step of decoding is bound by reading weights, so a few more rows in it cost little. What comes out has exactly the
distribution of plain decoding, whoever guesses: that is `verify`, and the tests prove it by enumeration.

    config        what is guessed with, and how far              pace        how far it pays, learned as it goes
    drafter       the promise of whoever guesses                 verify      which guesses stand
    ngram         the text itself: it said that before           step_cost   what a row more costs, learned too
    model_drafter a smaller model, or the first layers of this   counters    how well it went
    medusa        heads on the last hidden state
    loading       from config to drafter                         fit_medusa   heads for a model, from what it says

`sched/speculation` decides in each step who guesses how far; `exec/runner` lets them guess and verifies.
"""
