"""The activity of several gateways together."""

from gateway.explorer.activity import NO_ACTIVITY, TENANTS_MAX, ActivityReport, merged
from gateway.telemetry.overview import RequestTotals


def activity(requests, *, ttft=None, cached=0, prompt=0):
    totals = RequestTotals(requests=requests, prompt_tokens=prompt, cached_tokens=cached).shown()
    return {"total": totals, "minute": totals, "ttft_ms_p50": ttft, "ttft_error_p50": None}


def report(name, **tenants):
    return ActivityReport(gateways=[name], all=activity(1), tenants=tenants, workers={})


def test_totals_add_up_and_ratios_are_of_the_sums():
    one = report("one", acme=activity(10, cached=90, prompt=100))
    two = report("two", acme=activity(30, cached=0, prompt=800), globex=activity(1))
    found = merged([one, two])
    assert found.gateways == ["one", "two"]
    assert found.all["total"]["requests"] == 2
    assert found.tenants["acme"]["minute"]["requests"] == 40
    assert found.tenants["acme"]["total"]["hit_ratio"] == 0.1
    assert found.tenants["globex"]["total"]["requests"] == 1


def test_medians_are_weighted_by_requests():
    found = merged(
        [report("one", acme=activity(99, ttft=100.0)), report("two", acme=activity(0, ttft=200.0))]
    )
    assert 100.0 < found.tenants["acme"]["ttft_ms_p50"] < 102.0
    assert merged([report("one", acme=activity(1))]).tenants["acme"]["ttft_ms_p50"] is None


def test_the_busiest_tenants_are_kept_within_a_bound():
    many = {f"t{number}": activity(number) for number in range(TENANTS_MAX + 10)}
    found = merged([report("one", **many)])
    assert len(found.tenants) == TENANTS_MAX
    assert "t0" not in found.tenants
    assert f"t{TENANTS_MAX + 9}" in found.tenants


def test_no_activity_has_the_same_fields():
    assert NO_ACTIVITY.keys() == activity(0).keys()
