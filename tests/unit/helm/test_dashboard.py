"""The dashboard and the alerts against the gateway's own metrics: every name, label, code and query."""

import inspect
import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml

from gateway.domain import errors
from gateway.runtime.certificates import certificate_family
from gateway.telemetry.build_info import build_info
from gateway.telemetry.request_families import request_families
from gateway.telemetry.request_record import CLIENT_CLOSED, OK
from gateway.wiring.gauges import gauges

HELM = Path(__file__).parents[3] / "helm"
DASHBOARD = json.loads((HELM / "radixgate/dashboards/radixgate.json").read_text(encoding="utf-8"))
ALERTS_TEXT = (HELM / "radixgate/files/alerts.yaml").read_text(encoding="utf-8")
ALERTS = [
    rule
    for group in yaml.safe_load(
        ALERTS_TEXT.replace("$SELECTOR", 'namespace="llm",job="radixgate-admin"').replace(
            "$FIRST_TOKEN_SECONDS", "10"
        )
    )["groups"]
    for rule in group["rules"]
]
PANELS = DASHBOARD["panels"]
GRAPHS = [panel for panel in PANELS if panel["type"] != "row"]
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}

TARGET_LABELS = {"job", "instance", "namespace", "pod"}
"""Prometheus adds them."""

UNITS = {"s", "reqps", "percentunit", "short", "none", "suffix: tok/s"}


def metrics() -> dict[str, tuple[str, set[str]]]:
    """Every series as name to (kind, labels). Gauges read the gateway's parts at a scrape only: none is needed."""
    series: dict[str, tuple[str, set[str]]] = {}
    nothing: Any = None
    for family in (
        *request_families(nothing),
        *gauges(*[nothing] * 9),
        build_info(nothing),
        certificate_family(nothing),
    ):
        name, labels = family.name, set(family.labels)
        if family.kind == "histogram":
            series[f"{name}_bucket"] = ("histogram", labels | {"le"})
            series[f"{name}_sum"] = series[f"{name}_count"] = ("histogram", labels)
        else:
            series[name] = (family.kind, labels)
    return series


METRICS = metrics()

CODES = (
    {OK, CLIENT_CLOSED}
    | {kind.code for _, kind in inspect.getmembers(errors, inspect.isclass) if hasattr(kind, "code")}
    | set(re.findall(r'self\.code = "(\w+)"', inspect.getsource(errors)))
)
"""What the label `code` may say."""


def parsed(query: str) -> Any:
    """The query's tree, with some range and some values for Grafana's variables."""
    return promql.parse(re.sub(r"\$__(rate_interval|range|interval)", "5m", query).replace("$", ""))


def queries() -> Iterator[tuple[str, str]]:
    for panel in GRAPHS:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for rule in ALERTS:
        yield rule["alert"], rule["expr"]


def nodes(tree: Any) -> Iterator[Any]:
    """The tree's parts, each before what it contains."""
    yield tree
    inner = [getattr(tree, name, None) for name in ("expr", "lhs", "rhs", "vector_selector", "param")]
    for part in [*inner, *(tree.args if isinstance(tree, promql.Call) else ())]:
        if part is not None and not isinstance(part, str | int | float):
            yield from nodes(part)


def selectors(tree: Any) -> Iterator[Any]:
    return (node for node in nodes(tree) if isinstance(node, promql.VectorSelector))


EVERY_QUERY = pytest.mark.parametrize(
    "query", [pytest.param(query, id=f"{number} {title}") for number, (title, query) in enumerate(queries())]
)


@EVERY_QUERY
def test_a_query_names_metrics_and_labels_that_exist(query: str) -> None:
    tree = parsed(query)
    found = list(selectors(tree))
    assert found
    carried = set()
    for selector in found:
        assert selector.name in METRICS
        labels = METRICS[selector.name][1] | TARGET_LABELS
        carried |= labels
        assert {matcher.name for matcher in selector.matchers.matchers} <= labels
    for node in nodes(tree):
        if isinstance(node, promql.AggregateExpr) and node.modifier is not None:
            assert set(node.modifier.labels) <= carried


@EVERY_QUERY
def test_a_query_names_codes_that_clients_can_get(query: str) -> None:
    for selector in selectors(parsed(query)):
        for matcher in selector.matchers.matchers:
            if matcher.name == "code":
                assert set(matcher.value.split("|")) <= CODES


@EVERY_QUERY
def test_counters_are_read_as_rates_and_gauges_are_not(query: str) -> None:
    ranged = set()
    for node in nodes(parsed(query)):
        if isinstance(node, promql.Call):
            for matrix in node.args:
                if isinstance(matrix, promql.MatrixSelector):
                    assert node.func.name in ("rate", "increase")
                    ranged.add(matrix.vector_selector.name)
    for selector in selectors(parsed(query)):
        assert (selector.name in ranged) == (METRICS[selector.name][0] != "gauge")


@EVERY_QUERY
def test_ratios_are_of_sums_and_quantiles_of_summed_buckets(query: str) -> None:
    for node in nodes(parsed(query)):
        if isinstance(node, promql.AggregateExpr):
            # An average of ratios weighs a tenant with one request like one with a million.
            assert str(node.op) != "avg"
            assert not any(isinstance(n, promql.BinaryExpr) and str(n.op) == "/" for n in nodes(node.expr))
        if isinstance(node, promql.Call) and node.func.name == "histogram_quantile":
            summed = node.args[1]
            assert str(summed.op) == "sum"
            assert "le" in summed.modifier.labels


def test_the_dashboard_can_be_found_and_pointed_at_any_prometheus() -> None:
    assert DASHBOARD["uid"] == "radixgate"
    assert DASHBOARD["title"]
    assert VARIABLES["datasource"]["type"] == "datasource"
    assert {"tenant", "model", "worker"} <= set(VARIABLES)
    for panel in GRAPHS:
        for place in (panel, *panel["targets"]):
            assert place["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_variables_are_read_from_metrics_that_have_them_and_are_all_used() -> None:
    text = json.dumps(PANELS)
    for name, variable in VARIABLES.items():
        assert f"${name}" in text or f"${{{name}}}" in text
        if variable["type"] == "query":
            selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["definition"]).groups()
            assert label == name
            assert label in METRICS[parsed(selector).name][1] | TARGET_LABELS
            assert variable["query"]["query"] == variable["definition"]


def test_every_series_that_a_variable_could_narrow_is_narrowed() -> None:
    for title, query in queries():
        if title in {rule["alert"] for rule in ALERTS}:
            continue
        for selector in selectors(parsed(query)):
            given = {matcher.name for matcher in selector.matchers.matchers}
            wanted = {"job"} | (METRICS[selector.name][1] & {"tenant", "model", "worker"})
            assert wanted <= given, title


def test_panels_have_ids_of_their_own_a_title_a_unit_and_an_explanation() -> None:
    ids = [panel["id"] for panel in PANELS]
    assert len(set(ids)) == len(ids)
    for panel in GRAPHS:
        assert panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)


def test_panels_fit_the_grid_and_lie_beside_each_other() -> None:
    places = [panel["gridPos"] for panel in PANELS]
    for place in places:
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24
    for one, other in combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)


def test_every_metric_but_sums_and_counts_is_on_the_dashboard() -> None:
    shown = {
        selector.name
        for panel in GRAPHS
        for t in panel["targets"]
        for selector in selectors(parsed(t["expr"]))
    }
    assert {name for name in METRICS if not name.endswith(("_sum", "_count"))} - shown == {
        # Answered requests of a worker; its tokens and streams say more.
        "radixgate_worker_requests_total",
        # Always 1; its labels are for queries that compare versions.
        "radixgate_build_info",
        # An alert says in time when it matters.
        "radixgate_certificate_expiry_timestamp_seconds",
    }


def test_alerts_have_their_urgency_and_a_page_for_operators() -> None:
    names = [rule["alert"] for rule in ALERTS]
    assert len(set(names)) == len(names)
    guide = (HELM / "OPERATIONS.md").read_text(encoding="utf-8")
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
        assert rule["for"]
        assert f"`{rule['alert']}`" in guide


def test_alerts_look_at_this_release_only() -> None:
    for rule in ALERTS:
        for selector in selectors(parsed(rule["expr"])):
            assert {"namespace", "job"} <= {matcher.name for matcher in selector.matchers.matchers}


def test_the_placeholders_of_alerts_are_those_that_the_chart_fills_in() -> None:
    expressions = " ".join(
        rule["expr"] for group in yaml.safe_load(ALERTS_TEXT)["groups"] for rule in group["rules"]
    )
    assert set(re.findall(r"\$[A-Z_]+", expressions)) == {"$SELECTOR", "$FIRST_TOKEN_SECONDS"}
    template = (HELM / "radixgate/templates/monitoring/rules.yaml").read_text(encoding="utf-8")
    assert '"$SELECTOR"' in template
    assert '"$FIRST_TOKEN_SECONDS"' in template
