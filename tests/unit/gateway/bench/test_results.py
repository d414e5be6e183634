"""Results of the load client: goodput and errors by tenant."""

from gateway.bench.results import LatencyObjectives, RequestResult, summary_by_tenant


def result(tenant="acme", ttft=0.1, **more):
    return RequestResult(
        tenant=tenant,
        sent_at=0.0,
        first_at=ttft,
        last_at=ttft + 0.9,
        gaps=(0.1,) * 9,
        prompt_tokens=100,
        cached_tokens=60,
        output_tokens=10,
        **more,
    )


def test_goodput_goes_by_each_tenants_own_objectives():
    strict, usual = LatencyObjectives(ttft_seconds=0.05), LatencyObjectives()
    run = summary_by_tenant(
        [result("acme"), result("globex")], 2.0, lambda tenant: strict if tenant == "acme" else usual
    )
    assert run["tenants"]["acme"]["goodput"] == 0
    assert run["tenants"]["globex"]["goodput"] == 0  # its tokens come 100 ms apart
    run = summary_by_tenant([result("acme")], 2.0, lambda tenant: LatencyObjectives(tpot_seconds=0.2))
    assert run["all"]["goodput"] == 1
    assert run["all"]["goodput_requests_per_second"] == 0.5


def test_errors_are_counted_by_code_and_are_no_answers():
    run = summary_by_tenant(
        [result(), result(error="rate_limit_exceeded"), result(error="TimeoutError")], 1.0
    )["all"]
    assert run["errors"] == 2
    assert run["errors_by_code"] == {"rate_limit_exceeded": 1, "TimeoutError": 1}
    assert run["prompt_tokens"] == 100
