"""A pytest plugin for smg's tests, in their own environment: their gateway is the one at GATEWAY_URL."""

import os
import sys
from importlib import import_module
from types import SimpleNamespace

import openai
import pytest
from anthropic import Anthropic

URL = os.environ["GATEWAY_URL"]

sys.path.insert(0, os.getcwd())
# smg's own client library would have to be generated first: its tests run with OpenAI's only.
sys.modules["smg_client"] = openai
openai.SmgClient = None
fixtures = import_module("fixtures")
marker_value = import_module("fixtures.markers").get_marker_value
specifications = import_module("infra.model_specs")


@pytest.fixture(scope="class")
def setup_backend(request):
    """Return what the fixture of the same name yields there: backend, model, client, gateway."""
    name = request.param[0] if isinstance(request.param, tuple) else request.param
    if name in specifications.THIRD_PARTY_MODELS:
        model = specifications.THIRD_PARTY_MODELS[name]["model"]
    else:
        model = specifications.get_model_spec(marker_value(request, "model"))["model"]
    if name == "anthropic":
        client = Anthropic(base_url=URL, api_key="none", max_retries=0)
    else:
        client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
    return name, model, client, SimpleNamespace(base_url=URL)


fixtures.setup_backend = setup_backend
