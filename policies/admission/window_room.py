"""Whether a worker has room in its dispatch window, for one prompt or for any of those that wait."""

from collections.abc import Iterable

OPEN_OF_WORKERS = 4
"""Of so many workers at least one is left open by long prompts that are not batch work."""

LOOK_TOKENS, LOOK_SHARE = 1024, 1 / 16
"""Free space of so many tokens, or of this share of the window, is enough to rank the waiting requests again."""


def leaves_one_open(tokens_queued: Iterable[int], open_tokens: int, *, background: bool) -> bool:
    """Return whether an idle worker may take a prompt that is longer than the window: another worker is open.

    `tokens_queued` has the tokens ahead of every worker that could take the prompt, the idle one included. A worker
    that is the only one need not stay open: long prompts would starve. Of few workers only batch work leaves one
    open: the rest would lose too much of what they can do.
    """
    workers = open_workers = 0
    for tokens in tokens_queued:
        workers += 1
        open_workers += tokens <= open_tokens
    return workers == 1 or open_workers > 1 or (workers < OPEN_OF_WORKERS and not background)


def fits_window(
    tokens_queued: int, uncached_tokens: int, window_tokens: int, of_other_cells: int = 0
) -> bool:
    """Return whether a prefill that takes so many tokens may be sent to a worker with `tokens_queued` ahead of it.

    `uncached_tokens`: its own, as far as they take space (DispatchWindow.taken_by).

    An idle worker takes anything, also a prompt that is longer than the window. So does a worker where all that is
    ahead is of other cells, which might keep it busy for ever; `of_other_cells` are their part of the tokens
    queued, as far as it is known.

    A token that the worker has already computed counts as queued until the request's first token. Not to count it,
    where KV is not short, gained 6 % of mean TTFT near saturation (a public trace, 8 workers, three seeds) and cost
    tenants that are flooded by others 7 % of theirs (four seeds), as more of the flood was in the engines' queues.
    """
    return tokens_queued == of_other_cells or tokens_queued + uncached_tokens <= window_tokens


def worth_ranking_again(tokens_queued: int, least_tokens: int, window_tokens: int) -> bool:
    """Return whether a worker has space for one of the waiting requests, so that they should be ranked again.

    `least_tokens` is the smallest number of uncached prompt tokens among the waiting requests.

    A ranking costs a good part of what a request costs: with hundreds of requests waiting for a full fleet, ranking
    after every answer means several rankings for each request. More of a prompt may be cached by now than on
    arrival, so that a prompt fits where none seems to. That possibility is worth a ranking once LOOK_TOKENS are
    free, or LOOK_SHARE of a narrow window, but not before.
    """
    worth = min(LOOK_TOKENS, int(LOOK_SHARE * window_tokens))
    return fits_window(tokens_queued, min(least_tokens, worth), window_tokens)
