"""The prediction of a prefix: from the moment a request is sent, its worker counts as holding the prompt's blocks.

So requests that begin alike follow the first of them before it is answered. The prediction is confirmed by the
answer (`answered` of attempt_reports.py) and withdrawn when the placement is freed (`free` there).
"""

from gateway.dispatch.attempt_reports import AttemptReports
from gateway.dispatch.pending_request import Attempt, PendingRequest
from gateway.dispatch.placement import Placement
from gateway.kv_index.index_quota import IndexQuota
from radix_cache.index import PrefixIndex

HOLDERS_COMPARED = 8
"""Workers with the longest parts of a prompt that are compared, however large the fleet is."""


class PrefixPrediction:
    """Records in the index that the worker of an attempt will hold the prompt's blocks."""

    def __init__(self, *, index: PrefixIndex, index_quota: IndexQuota, reports: AttemptReports) -> None:
        self._index = index
        self._index_quota = index_quota
        self._reports = reports

    def predict(self, pending: PendingRequest, attempt: Attempt) -> None:
        """Note what the index has of the worker's cache, and predict the prompt there; once per attempt.

        There is no `await` between the choice of the worker and this call: so a request with the same prefix that
        is ranked next finds the prediction. The request may already be on its way to the worker.
        """
        if attempt.predicted:
            return
        attempt.predicted = True
        self._reports.attempt_begins(pending, attempt)
        placement, tenant, prompt = attempt.placement, pending.ctx.tenant, pending.prompt
        if placement.worker.provider is not None or not prompt.hashes:
            return
        attempt.recorded = tenant.cache_blocks_max is None or self._index_quota.try_record(
            tenant, _new_blocks(pending, placement)
        )
        if attempt.recorded:
            # Not on the decode worker of a pair, where the next request with this prefix must compute it again.
            worker, match = placement.prefill_worker.id, placement.match
            self._index.record(prompt.namespace, prompt.hashes, worker, pending.ctx.id, match)


def _new_blocks(pending: PendingRequest, placement: Placement) -> int:
    """Return how many blocks lie beyond the longest part of the prompt that a worker is known to hold."""
    match, blocks = placement.match, len(pending.prompt.hashes)
    longest = match.holders(HOLDERS_COMPARED) if match is not None else ()
    return blocks - match.blocks(longest[0]) if match is not None and longest else blocks
