"""Identifies the kinds of workers: for workers with `kind: auto`, and for others to compare with their settings."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from gateway.settings.workers import AUTO_KIND, WorkerSettings
from workers.adapter import WorkerFailed, WorkerTarget
from workers.probing.identification import ask_kind

log = logging.getLogger(__name__)

ASK_SECONDS = 1.0
"""Time between two requests to a worker that has not answered."""

ASKED_AT_ONCE_MAX = 32

UNKNOWN_KIND = "openai"
"""The kind of an engine that is known only by its API."""


class WorkerKinds:
    """The kinds of workers, as far as they are known.

    Args:
        target_of: returns the address and the credentials in the settings of a worker.
    """

    def __init__(self, target_of: Callable[[WorkerSettings], WorkerTarget]) -> None:
        self._target_of = target_of
        self._known: dict[str, str] = {}
        self._troubles: dict[str, str] = {}
        self._compared: set[tuple[str, str]] = set()  # address and kind in the settings
        self._asking = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

    def resolved(self, settings: WorkerSettings) -> WorkerSettings | None:
        """Return the settings with the worker's kind; None while the kind is not known."""
        if settings.kind != AUTO_KIND:
            return settings
        kind = UNKNOWN_KIND if settings.provider is not None else self._known.get(settings.url)
        return replace(settings, kind=kind) if kind is not None else None

    def keep_only(self, wanted: Iterable[WorkerSettings]) -> None:
        """Drop the kinds of other workers than these, since another engine may serve at their address later."""
        wanted = list(wanted)
        urls = {settings.url for settings in wanted if settings.kind == AUTO_KIND}
        self._compared &= {(settings.url, settings.kind) for settings in wanted}
        self._known = {url: kind for url, kind in self._known.items() if url in urls}
        self._troubles = {url: trouble for url, trouble in self._troubles.items() if url in urls}

    async def ask(self, unknown: Sequence[WorkerSettings]) -> None:
        """Ask these workers for their kinds, all at once; those that do not answer stay unknown."""
        await asyncio.gather(*(self._ask(settings) for settings in unknown))

    async def compare(self, workers: Iterable[WorkerSettings]) -> None:
        """Identify each of these workers once, and log a warning if its settings name another kind."""
        new = [
            settings
            for settings in workers
            if settings.kind not in (AUTO_KIND, UNKNOWN_KIND)
            and (settings.url, settings.kind) not in self._compared
        ]
        self._compared.update((settings.url, settings.kind) for settings in new)
        await asyncio.gather(*map(self._compare, new))

    async def _compare(self, settings: WorkerSettings) -> None:
        async with self._asking:
            try:
                kind = await ask_kind(self._target_of(settings))
            except (WorkerFailed, OSError):
                return
        if kind not in (settings.kind, UNKNOWN_KIND):
            log.warning(
                "worker %s is of kind %s, but its settings say %s: its load, KV events and cached tokens may be "
                "missing; leave `kind` out, or correct it",
                *(settings.id, kind, settings.kind),
            )

    async def _ask(self, settings: WorkerSettings) -> None:
        async with self._asking:
            try:
                kind = await ask_kind(self._target_of(settings))
            except (WorkerFailed, OSError) as err:
                if self._troubles.get(settings.url) != str(err):
                    log.warning("worker %s has not reported its kind yet: %s", settings.id, err)
                    self._troubles[settings.url] = str(err)
                return
        log.info("worker %s is of kind %s", settings.id, kind)
        self._known[settings.url] = kind
        self._troubles.pop(settings.url, None)
