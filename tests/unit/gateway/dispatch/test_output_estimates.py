"""Output estimates: how many output tokens a request reserves and is expected to take."""

import pytest

from gateway.dispatch.output_estimates import OutputEstimates
from gateway.domain.model import Model
from gateway.domain.request import InferenceRequest, Surface
from gateway.domain.request_context import RequestContext
from gateway.domain.tenant import Plan, Tenant
from gateway.quotas.limit import Limit, Scope
from gateway.tokenization.text_encoder import TextEncoder
from policies.admission.limit_windows import Window


def context(*, limit=None, choices=1, amount=None, prompts=None):
    limits = (Limit(unit="total_tokens", amount=amount, window=Window.of("minute")),) if amount else ()
    plan = Plan(limits=limits)
    return RequestContext(
        id="r",
        tenant=Tenant(
            id="t",
            organisation="t",
            key_id="k",
            plan=plan,
            group="",
            scopes=(Scope(name="tenant:t", limits=limits),),
        ),
        model=Model(name="m", block_size=16, encoder=TextEncoder(), context_length=None, created=0),
        request=InferenceRequest(
            surface=Surface.COMPLETIONS if prompts else Surface.CHAT,
            model="m",
            fields={},
            prompt=prompts or [{"role": "user"}, {"role": "assistant"}],
            stream=True,
            include_usage=False,
            choices=choices,
            output_tokens_max=limit,
        ),
        received_at=0.0,
    )


def reserved(estimates, ctx, prompt_tokens):
    return estimates.reserved(ctx, ctx.tenant.scopes, prompt_tokens)


def test_a_clients_own_bound_is_reserved_for_every_choice():
    assert reserved(OutputEstimates(), context(limit=100, choices=3), 10) == 300


def test_every_prompt_of_a_completion_gets_its_own_answers():
    request = context(limit=100, choices=2, prompts=["a", "b", [1, 2]])
    estimates = OutputEstimates()
    assert reserved(estimates, request, 10) == 600
    assert estimates.expected(request) == 600
    for _ in range(200):
        estimates.learn(request, 6 * 40)
    assert estimates.expected(context()) == pytest.approx(40, abs=1)
    assert reserved(estimates, context(prompts=["a"] * 5), 10) == pytest.approx(200, abs=5)


def test_without_a_bound_the_tenants_answers_of_late_are_the_estimate():
    estimates = OutputEstimates()
    for _ in range(200):
        estimates.learn(context(), 40)
    assert reserved(estimates, context(), 10) == pytest.approx(40, abs=1)
    assert estimates.expected(context(limit=20)) == 20


def test_an_estimate_shrinks_to_fit_the_limit_and_never_below_nothing():
    assert reserved(OutputEstimates(), context(amount=60), 50) == 10
    assert reserved(OutputEstimates(), context(amount=60), 100) == 0
