"""The adapter of kind `lmdeploy`, for LMDeploy's api_server."""

import re

from workers.adapters.metered import MeteredAdapter


class LmdeployAdapter(MeteredAdapter):
    """The WorkerAdapter of kind `lmdeploy`: LMDeploy's api_server."""

    gauges = re.compile(rb"^lmdeploy:num_requests_(?:running|waiting)(?:\{[^\n]*\})? ([0-9.e+-]+)$", re.M)
