"""The routes that a request may wait for where some workers are filled (policies/admission/filled_workers.py)."""

from itertools import compress

from gateway.dispatch.acquisition.ttft_target import tokens_to_compute
from gateway.dispatch.placement import prefill_worker_of
from policies.admission.dispatch_window import DispatchWindow
from policies.routing.protocol import Ranking


def allowed_routes(routes: Ranking, prompt_tokens: int, window: DispatchWindow, *, patient: bool) -> Ranking:
    """Return the routes that a request may wait for, in their order. `patient`: see DispatchWindow.is_patient."""
    if window.filled is None:
        return routes
    asked = [(prefill_worker_of(each), tokens_to_compute(prompt_tokens, each)) for each in routes]
    return tuple(compress(routes, window.choices(asked, patient=patient)))
