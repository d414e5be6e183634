"""The report of one cell to the others: its loads on workers, and the progress of its queues."""

import logging
from collections.abc import Iterable

import msgspec

from gateway.fleet.worker_lookup import WorkerLookup
from gateway.queueing.shared.queue_messages import CellState
from policies.cell_turns import QueueProgress

log = logging.getLogger(__name__)

WORKERS_MAX = 8192
"""The most workers in the loads that one cell shares."""

QUEUES_MAX = 1024
"""Queues of one cell that keep in step with those of the others."""


class CellLoad(msgspec.Struct, frozen=True, array_like=True):
    """What one cell has on one worker."""

    worker: str
    address: str
    tokens_queued: int
    streams: int
    kv_tokens: int


class CellReport(msgspec.Struct, frozen=True, array_like=True):
    """The loads and the progress of one cell, as the other cells get them."""

    loads: list[CellLoad] = []
    progress: dict[str, QueueProgress] = {}
    """By queue; those are left out that have given no turn."""


_decoder = msgspec.msgpack.Decoder(CellReport)


def encode_report(own: CellState, fleet: WorkerLookup) -> bytes:
    """Return the report of a cell with this state, as MessagePack."""
    begun = [(queue, progress) for queue, progress in own.progress.items() if progress.virtual_time > 0]
    return msgspec.msgpack.encode(CellReport(list(_loads(own, fleet)), dict(begun[:QUEUES_MAX])))


def decode_report(text: bytes) -> CellReport:
    """Return the report of one cell; an empty one if a gateway of another version has written it differently."""
    try:
        return _decoder.decode(text)
    except msgspec.MsgspecError as err:
        log.debug("the report of a cell cannot be read: %s", err)
        return CellReport()


def _loads(own: CellState, fleet: WorkerLookup) -> Iterable[CellLoad]:
    for identity, load in list(own.loads.items())[:WORKERS_MAX]:
        worker = fleet.get(identity)
        if worker is not None and worker.provider is None:
            yield CellLoad(identity, worker.address, load.tokens_queued, load.streams, load.kv_tokens)
