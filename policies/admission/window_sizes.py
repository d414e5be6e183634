"""How wide the dispatch windows are: a fixed number of tokens, or a share of a TTFT target.

While the requests that come are all of one class, and no tenant crowds out another one, the window has a fixed
number of tokens (`tokens_max` of the settings). It becomes a time while there are several classes, or tenants that
have requests waiting and most of the recent work, beside one that has none waiting (traffic_in_sight.py): an engine
cannot let a request overtake what it has been sent. The time is a share of the tightest TTFT target in sight, at
the workers' learnt speed. In this time an engine computes the prompts ahead of the next urgent request; the rest of
the target is left for the step under way and the request's own. Preempting is not enough: a step under way runs to
its end. For open workers (filled_workers.py) it is a time to the first token, with what every request costs
besides its tokens: that is a third of it, as their steps are short. And the learnt time of a usual step varies less
than either constant alone: one of them is learnt too great where the other is learnt too small.

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
from policies.latency_model import tokens_within
from workers.worker import Speed

NARROW_SHARE, WIDE_SHARE = 0.3, 0.6
"""What windows last, as shares of the tightest TTFT target in sight."""

WIDE_SHARE_OF_OPEN = 1.2
"""When the wide window of open workers brings its last first token, as a share of the tightest target."""

FIXED_SHARE_MAX = 0.5
"""Share of the tightest target that the constant part of a TTFT counts as at most: an engine that is slower still
would be sent one request at a time."""

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
    open_speed: Speed | None = None,
    workers: int = 0,
) -> DispatchWindow:
    """Return the window while requests with these TTFT targets come, in seconds.

    `contended`: see DispatchWindow. `ms_per_token`: the workers' speed. `batch_seconds`: the target of batch work,
    for which no worker has to be left open. `flood`: what waits of tenants that have had most of all waiting
    requests for a while. `filled`: the workers that patient classes fill or, with one class in sight, tenants that
    crowd. `open_speed`: the mean speed of the open ones, with several classes. `workers`: how many there are.
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
    if len(targets) > 1 and filled is not None and open_speed is not None:
        narrow, wide = _of_open_workers(1000 * tightest, filled.narrow_share, open_speed)
    else:
        of_crowd = len(targets) == 1
        shares = _shares_beside_crowd(flood, tokens_max) if of_crowd else (NARROW_SHARE, WIDE_SHARE)
        narrow, wide = (int(share * tokens) for share in shares)
    narrow = min(tokens_max, max(1, narrow))
    return DispatchWindow(
        narrow=narrow,
        wide=min(tokens_max, max(1, wide)),
        open=int(OPEN_SHARE * narrow) if tightest < batch_seconds else None,
        contended=contended,
        counts_own=len(targets) > 1,
        filled=filled,
        passed_over_max=passed_over_max(workers),
    )


def _of_open_workers(target_ms: float, narrow_share: float, speed: Speed) -> tuple[int, int]:
    """Return the narrow and the wide window of open workers in tokens, while several classes are in sight.

    An urgent request that waits in the gateway misses the engine's next step, and is late. In the engine it makes
    that step longer by its own few tokens only. So it is sent also if it is expected a little late.
    """
    counted = replace(speed, fixed_ms=min(speed.fixed_ms, FIXED_SHARE_MAX * target_ms))
    return tokens_within(counted, narrow_share * target_ms), tokens_within(
        counted, WIDE_SHARE_OF_OPEN * target_ms
    )


def _shares_beside_crowd(flood: WaitingTotals, tokens_max: int) -> tuple[float, float]:
    """Return what the windows last while tenants of one class contend."""
    return max(FLOODED_SHARE, CONTENDED_SHARE * _of_short_prompts(flood, tokens_max)), WIDE_SHARE


def _of_short_prompts(flood: WaitingTotals, tokens_max: int) -> float:
    """Return 1 without a standing flood or if its prompts are short, and less the longer they are."""
    if flood.tokens < STANDING_WINDOWS * tokens_max:
        return 1.0
    return min(1.0, SHORT_TOKENS * flood.requests / flood.tokens)
