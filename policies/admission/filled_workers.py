"""Filled workers: they compute long prefills, and leave others to urgent classes, or to tenants beside a crowd.

    |-- open workers, the first by id --|-- filled workers -----------------|
     urgent classes; a narrow window     a window for the tightest target
     for the other classes               among the other classes

Short steps keep a part of an engine's throughput back (window_sizes.py). They are needed where urgent requests
go, and nowhere else. Classes are patient here, batch work always among them, if their target is at least
PATIENT_TARGETS times the tightest one. So many workers stay open that the prompts of urgent classes take at most
OPEN_LOAD of their time; with one worker, or too little room, none is filled. The more of it they take, the narrower
is the window of other classes there, since urgent requests come in bursts.

Beside tenants that crowd, with requests of one class, it is the same: at most a quarter of the workers stay open
to the others, as many as these need to wait for each other little (OPEN_WAIT_SHARE). The crowd fills the rest as
if it were alone, in full steps, and of its prompts open workers compute short ones alone. Where the others need
more, or there are less than four workers, all workers have narrow windows. Before a crowd is one, it is the same
for a tenant with most of the recent work, but prompts that are cached there may go to an open worker: the first
ones of a flood find all workers idle, and a long one would hold up an open worker for its whole length.

Batch work leaves a part of an engine's slots, the requests that it runs at a time, to other classes, and so does a
tenant that crowds to other tenants (dispatch_window.py): an engine with long answers in all of its slots begins no
prompt, however short its queue is. Patient interactive classes leave a few slots of open workers: their answers are
long, and an urgent request that waits for a slot is late. A chat that finds no other slot there goes to a filled
worker, where batch work leaves it a part of the window: behind long batch prompts it would be late. Classes fill
workers only if the number of slots of each is known.
"""

from collections.abc import Mapping, Sequence
from math import ceil, inf

import msgspec

from radix_cache.match import WorkerId

PATIENT_TARGETS = 2.0
"""A class is patient if its target is at least so many times the tightest one in sight."""

FILLED_SHARE = 0.6
"""What the window of a filled worker lasts, as a share of the tightest target of patient classes."""

OPEN_LOAD = 0.5
"""Share of the time of open workers that the prompts of urgent classes take at most, at full steps."""

NARROW_SHARE_MAX, LIGHT_LOAD, NARROWING = 0.67, 0.34, 2.5
"""When the narrow window of open workers brings its last first token, as a share of the tightest target: so late up
to a light load of urgent classes, and earlier by NARROWING times what their load exceeds that."""

OPEN_LOAD_BESIDE_CROWD = 0.25
"""Share of the time of open workers that the prompts of tenants that do not crowd take at most."""

OPEN_WAIT_SHARE = 0.04
"""What they wait for each other on open workers at most, in the mean, as a share of their TTFT target."""

CROWD_OF_FLEET = 0.125
"""A tenant with a demand below this share of what the workers can compute is no crowd."""

OPEN_OF_WORKERS = 4
"""Beside tenants that crowd at most one of so many workers is open: the crowd has most of the work."""

SPARE_SHARE = 0.1
"""Share of an engine's slots that batch work leaves to other classes, and a tenant that crowds to other tenants."""

OPEN_SPARE_SHARE = 0.02
"""Share of an open worker's slots that patient interactive classes leave to urgent ones."""

NARROW_SHARE_OF_FILLED = 0.85
"""Share of a filled worker's window that batch work may take; the rest is for patient interactive classes."""


class FilledWorkers(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Which workers are filled, and how far."""

    last_open: WorkerId
    """The workers up to this id are open, the others are filled."""
    tokens: int
    """The window of filled workers for patient classes and crowding tenants."""
    patient_seconds: float
    """Classes with at least this TTFT target are patient."""
    narrow_share: float = NARROW_SHARE_MAX
    """When the narrow window of open workers brings its last first token, as a share of the tightest target."""
    open_tokens: int | None = None
    """What a tenant that crowds may have ahead of an open worker; None: classes fill workers, and not tenants."""

    @property
    def narrow_tokens(self) -> int:
        """What batch work may take of `tokens`; all of them where tenants fill workers."""
        return self.tokens if self.open_tokens is not None else int(NARROW_SHARE_OF_FILLED * self.tokens)


def filled_workers(
    tokens_per_second: Mapping[float, float],
    workers: Sequence[WorkerId],
    *,
    ms_per_token: float,
    tokens_max: int,
) -> FilledWorkers | None:
    """Return which workers are filled; None: none can be spared.

    `tokens_per_second`: uncached prompt tokens that come of the classes in sight, by TTFT target in seconds;
    infinity of a class that has just come into sight.
    `workers`: those of the model, in the order of their ids; none if the slots of any of them are not known.
    """
    if len(workers) < 2 or len(tokens_per_second) < 2:
        return None
    patient_seconds = PATIENT_TARGETS * min(tokens_per_second)
    patient = [target for target in tokens_per_second if target >= patient_seconds]
    if not patient:
        return None
    urgent = sum(tokens for target, tokens in tokens_per_second.items() if target < patient_seconds)
    load = urgent * ms_per_token / 1000
    if load > OPEN_LOAD * (len(workers) - 1):
        return None
    count = max(1, ceil(load / OPEN_LOAD))
    return FilledWorkers(
        last_open=workers[count - 1],
        tokens=min(tokens_max, int(1000 * FILLED_SHARE * min(patient) / ms_per_token)),
        patient_seconds=patient_seconds,
        narrow_share=max(0.0, NARROW_SHARE_MAX - NARROWING * max(0.0, load / count - LIGHT_LOAD)),
    )


def much_demand(workers: int, *, ms_per_token: float) -> float:
    """Return the prompt tokens in a second above which a tenant can be a crowd beside others."""
    return CROWD_OF_FLEET * workers * 1000 / ms_per_token


def little_work(target_seconds: float, *, ms_per_token: float) -> float:
    """Return the tokens that a worker computes within a TTFT target: less recent work of a tenant is no flood."""
    return 1000 * target_seconds / ms_per_token


def filled_beside_tenants(
    demand: tuple[float, float],
    workers: Sequence[WorkerId],
    *,
    target_seconds: float,
    ms_per_token: float,
    tokens_max: int,
) -> FilledWorkers | None:
    """Return which workers tenants that crowd fill; None: the others need more than can be spared.

    `demand`: what comes of the others in a second: uncached prompt tokens, and the sum of the squares of each
    prompt's; infinity while that is not known. `workers`: those of the model, in the order of their ids.
    `target_seconds`: the TTFT target of the class in sight. Requests that come at random to one worker wait half
    the sum of the squares of their prompts' times, of those that come in a second (Pollaczek and Khinchine).
    """
    seconds_per_token = ms_per_token / 1000
    load = demand[0] * seconds_per_token
    wait = demand[1] * seconds_per_token**2 / 2
    needed = max(1.0, load / OPEN_LOAD_BESIDE_CROWD, wait / (OPEN_WAIT_SHARE * target_seconds))
    if needed > len(workers) // OPEN_OF_WORKERS:
        return None
    count = ceil(needed)
    return FilledWorkers(last_open=workers[count - 1], tokens=tokens_max, patient_seconds=inf)


def slots_allowed(slots: int | None, *, share: float = SPARE_SHARE) -> float:
    """Return how many of an engine's slots requests may take that leave this share of them; at least one.

    It is infinity if the number of slots is not known (None).
    """
    return inf if slots is None else max(1, slots - ceil(share * slots))
