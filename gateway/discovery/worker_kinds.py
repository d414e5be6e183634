"""Finds the kinds of workers whose settings leave the kind open (`kind: auto`), by asking them."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from gateway.settings.workers import AUTO_KIND, WorkerSettings
from workers.adapter import WorkerTarget, WorkerUnreachable
from workers.probing.identification import ask_kind

log = logging.getLogger(__name__)

ASK_SECONDS = 1.0
"""Time between two questions to a worker that has not answered."""

ASKED_AT_ONCE_MAX = 32


class WorkerKinds:
    """The kinds of workers, as far as they are known.

    Args:
        target_of: returns the address and the credentials in the settings of a worker.
    """

    def __init__(self, target_of: Callable[[WorkerSettings], WorkerTarget]) -> None:
        self._target_of = target_of
        self._known: dict[str, str] = {}
        self._troubles: dict[str, str] = {}
        self._asking = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

    def resolved(self, settings: WorkerSettings) -> WorkerSettings | None:
        """Return the settings with the worker's kind; None while the kind is not known."""
        if settings.kind != AUTO_KIND:
            return settings
        kind = "openai" if settings.provider is not None else self._known.get(settings.url)
        return replace(settings, kind=kind) if kind is not None else None

    def keep_only(self, wanted: Iterable[WorkerSettings]) -> None:
        """Forget workers that are not among these: another engine may serve at their address some day."""
        urls = {settings.url for settings in wanted if settings.kind == AUTO_KIND}
        self._known = {url: kind for url, kind in self._known.items() if url in urls}
        self._troubles = {url: trouble for url, trouble in self._troubles.items() if url in urls}

    async def ask(self, unknown: Sequence[WorkerSettings]) -> None:
        """Ask these workers for their kinds, all at once; those that do not answer stay unknown."""
        await asyncio.gather(*(self._ask(settings) for settings in unknown))

    async def _ask(self, settings: WorkerSettings) -> None:
        async with self._asking:
            try:
                kind = await ask_kind(self._target_of(settings))
            except (WorkerUnreachable, OSError) as err:
                if self._troubles.get(settings.url) != str(err):
                    log.warning("worker %s has not told its kind yet: %s", settings.id, err)
                    self._troubles[settings.url] = str(err)
                return
        log.info("worker %s is of kind %s", settings.id, kind)
        self._known[settings.url] = kind
        self._troubles.pop(settings.url, None)
