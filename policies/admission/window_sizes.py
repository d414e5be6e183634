"""How wide the dispatch windows are: a fixed number of tokens, or a share of a TTFT target.

While the requests that come are all of one class, and no tenant crowds out another one, the window has a fixed
number of tokens (`tokens_max` of the settings). It becomes a time while there are several classes, or tenants that
have requests waiting and most of the recent work, beside one that has none waiting (traffic_in_sight.py): an engine
cannot let a request overtake what it has been sent. The time is a share of the tightest TTFT target in sight, at
the workers' learnt speed. In this time an engine computes the prompts ahead of the next urgent request; the rest of
the target is left for the step under way and the request's own. Preempting is not enough: a step under way runs to
its end.

A narrow window costs compute: its steps are short, and between two of them lies one without any prompt, since the
next prompts are sent when the first tokens have come. Near saturation that alone makes a queue last. So it has to
gain something for tenants that have none waiting: the share of the work that is held back. Beside a standing flood
of long prompts it is half as wide, since the engine's step under way is most of the p99 TTFT of the others.
"""

from collections.abc import Collection

from msgspec.structs import replace

from policies.admission.dispatch_window import DispatchWindow
from policies.admission.filled_workers import FilledWorkers
from policies.admission.search_bounds import passed_over_max
from policies.admission.waiting_bounds import NONE_WAITING, WaitingTotals

NARROW_SHARE, WIDE_SHARE = 0.3, 0.6
"""What windows last, as shares of the tightest TTFT target in sight."""

WIDE_BESIDE_FILLED = 1.0
"""In place of WIDE_SHARE, where workers are filled. The narrow window of open workers is in FilledWorkers then.

An urgent request that waits in the gateway misses the engine's next step, and is late. In the engine it makes that
step longer by its own few tokens only. So it is sent as long as what is ahead of it leaves it in time.
"""

CONTENDED_SHARE = 0.2
"""In place of NARROW_SHARE, where tenants contend with requests of one class."""

FLOODED_SHARE = 0.1
"""In place of CONTENDED_SHARE, beside a standing flood of prompts that fill an engine's step by themselves."""

OPEN_BESIDE_CROWD, OPEN_BEFORE_CROWD = 0.085, 0.2
"""What a tenant has ahead of an open worker at most, as shares of the TTFT target: one that crowds and fills the
others, where a standing flood of long prompts gets less; and before it crowds, one with most of the recent work."""

SHORT_TOKENS = 4096
"""A flood's prompts are short up to this mean of uncached tokens: an engine's step then takes several of them."""

STANDING_WINDOWS = 4
"""A tenant floods while its waiting prompts have more than this many times `tokens_max` of the settings."""

OPEN_SHARE = 0.5
"""Share of the narrow window that an open worker has ahead at most."""


def window_for_targets(
    targets: Collection[float],
    *,
    contended: bool,
    ms_per_token: float,
    tokens_max: int,
    batch_seconds: float,
    flood: WaitingTotals = NONE_WAITING,
    filled: FilledWorkers | None = None,
    workers: int = 0,
) -> DispatchWindow:
    """Return the window while requests with these TTFT targets come, in seconds.

    `contended`: see DispatchWindow. `ms_per_token`: the workers' speed. `batch_seconds`: the target of batch work,
    for which no worker has to be left open. `flood`: what waits of tenants that have had most of all waiting
    requests for a while. `filled`: the workers that patient classes fill or, with one class in sight, tenants that
    crowd. `workers`: how many there are.
    """
    tightest = min(targets, default=batch_seconds)
    tokens = 1000 * tightest / ms_per_token
    if len(targets) < 2 and filled is not None:
        share = (
            OPEN_BEFORE_CROWD if not contended else OPEN_BESIDE_CROWD * _of_short_prompts(flood, tokens_max)
        )
        filled = replace(filled, open_tokens=int(share * tokens)) if tightest < batch_seconds else None
    if not targets or (len(targets) == 1 and not contended):
        over_max = passed_over_max(workers, awaits_one=True)
        return DispatchWindow(narrow=tokens_max, wide=tokens_max, filled=filled, passed_over_max=over_max)
    if len(targets) > 1:
        narrow_share, wide_share = _shares_of_classes(filled)
    else:
        narrow_share, wide_share = _shares_beside_crowd(flood, tokens_max)
    narrow = min(tokens_max, max(1, int(narrow_share * tokens)))
    return DispatchWindow(
        narrow=narrow,
        wide=min(tokens_max, max(1, int(wide_share * tokens))),
        open=int(OPEN_SHARE * narrow) if tightest < batch_seconds else None,
        contended=contended,
        counts_own=len(targets) > 1,
        filled=filled,
        passed_over_max=passed_over_max(workers),
    )


def _shares_of_classes(filled: FilledWorkers | None) -> tuple[float, float]:
    """Return what the narrow and the wide window last while several classes are in sight."""
    if filled is None:
        return NARROW_SHARE, WIDE_SHARE
    return filled.narrow_share, WIDE_BESIDE_FILLED


def _shares_beside_crowd(flood: WaitingTotals, tokens_max: int) -> tuple[float, float]:
    """Return what the windows last while tenants of one class contend."""
    return max(FLOODED_SHARE, CONTENDED_SHARE * _of_short_prompts(flood, tokens_max)), WIDE_SHARE


def _of_short_prompts(flood: WaitingTotals, tokens_max: int) -> float:
    """Return 1 without a standing flood or if its prompts are short, and less the longer they are."""
    if flood.tokens < STANDING_WINDOWS * tokens_max:
        return 1.0
    return min(1.0, SHORT_TOKENS * flood.requests / flood.tokens)
