"""Runs many simulated trials, one process per core, and keeps an eye on how far they are."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing.queues import SimpleQueue
from threading import Thread
from typing import Any

from policies.simulation.outcome import averaged, figures
from policies.simulation.trial import Trial

Figures = dict[str, Any]

_reports: "SimpleQueue[int] | None" = None
"""Of this process, if it is one of the pool."""


def usable_cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_trials(trials: Sequence[Trial], *, processes: int, progress: Callable[[int], None]) -> list[Figures]:
    """The figures of each, in order. `progress` hears of so many more requests that have arrived somewhere.

    Raises what a trial raises: TraceInvalid, PolicyError.
    """
    if processes == 1 or len(trials) == 1:
        return [figures(trial.run(progress)) for trial in trials]
    context = multiprocessing.get_context("spawn")
    reports: SimpleQueue[int] = context.SimpleQueue()
    listener = Thread(target=partial(_listen, reports, progress), daemon=True)
    listener.start()
    with ProcessPoolExecutor(
        min(processes, len(trials)), mp_context=context, initializer=_enter, initargs=(reports,)
    ) as pool:
        results = list(pool.map(_run, trials))
    reports.put(-1)
    listener.join()
    return results


def mean_by_subject(trials: Sequence[Trial], results: Sequence[Figures]) -> dict[str, dict[str, Figures]]:
    """Of each group the mean figures of each subject over its seeds, in the order of the trials."""
    found: dict[str, dict[str, list[Figures]]] = {}
    for trial, result in zip(trials, results, strict=True):
        found.setdefault(trial.group, {}).setdefault(trial.label, []).append(result)
    return {
        group: {subject: averaged(runs) for subject, runs in subjects.items()}
        for group, subjects in found.items()
    }


def _enter(reports: "SimpleQueue[int]") -> None:
    global _reports
    _reports = reports


def _run(trial: Trial) -> Figures:
    return figures(trial.run(_reports.put if _reports is not None else None))


def _listen(reports: "SimpleQueue[int]", progress: Callable[[int], None]) -> None:
    while (arrived := reports.get()) >= 0:
        progress(arrived)
