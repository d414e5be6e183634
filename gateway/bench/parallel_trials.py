"""Runs many simulated trials in parallel, one process per core, and reports progress."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing.queues import SimpleQueue
from threading import Thread
from typing import Any

from policies.simulation.outcome import averaged, figures
from policies.simulation.trial import Trial

Figures = dict[str, Any]

_reports: "SimpleQueue[int] | None" = None
"""The queue to report progress to, in a process of the pool."""


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_trials(trials: Sequence[Trial], *, processes: int, progress: Callable[[int], None]) -> list[Figures]:
    """Run the trials, and return the figures of each, in order; see `trial_figures`."""
    return list(trial_figures(trials, processes=processes, progress=progress))


def trial_figures(
    trials: Sequence[Trial], *, processes: int, progress: Callable[[int], None] | None = None
) -> Iterator[Figures]:
    """Run the trials, and yield the figures of each, in order, as soon as they and those before them are known.

    Args:
        trials: the trials to run.
        processes: number of processes.
        progress: called with the number of further requests that arrived in any trial.

    Raises:
        TraceInvalid, PolicyError: a trial is wrong.
    """
    if processes == 1 or len(trials) == 1:
        yield from (figures(trial.run(progress)) for trial in trials)
        return
    context = multiprocessing.get_context("spawn")
    reports: SimpleQueue[int] = context.SimpleQueue()
    if progress is not None:
        listener = Thread(target=partial(_listen, reports, progress), daemon=True)
        listener.start()
    with ProcessPoolExecutor(
        min(processes, len(trials)),
        mp_context=context,
        initializer=_initialize_process,
        initargs=(reports if progress is not None else None,),
    ) as pool:
        yield from pool.map(_run, trials)
    if progress is not None:
        reports.put(-1)
        listener.join()


def mean_by_subject(trials: Sequence[Trial], results: Sequence[Figures]) -> dict[str, dict[str, Figures]]:
    """Return for each group the mean figures of each subject over its seeds, in the order of the trials."""
    found: dict[str, dict[str, list[Figures]]] = {}
    for trial, result in zip(trials, results, strict=True):
        found.setdefault(trial.group, {}).setdefault(trial.label, []).append(result)
    return {
        group: {subject: averaged(runs) for subject, runs in subjects.items()}
        for group, subjects in found.items()
    }


def _initialize_process(reports: "SimpleQueue[int] | None") -> None:
    global _reports
    _reports = reports


def _run(trial: Trial) -> Figures:
    return figures(trial.run(_reports.put if _reports is not None else None))


def _listen(reports: "SimpleQueue[int]", progress: Callable[[int], None]) -> None:
    while (arrived := reports.get()) >= 0:
        progress(arrived)
