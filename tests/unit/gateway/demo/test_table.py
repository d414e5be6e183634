"""The demo's table: legible in a terminal of 80 columns, and in a pipe."""

import re
from io import StringIO

import pytest
from rich.console import Console

from gateway.bench.results import RequestResult, summary_by_tenant
from gateway.demo.table import ROWS, comparison_table


def runs():
    def run(speed):
        results = [
            RequestResult(
                tenant=tenant,
                sent_at=0.0,
                first_at=1.2345 / speed,
                last_at=2.5 / speed,
                gaps=(0.05 / speed, 0.06 / speed),
                prompt_tokens=123_456_789,
                cached_tokens=int(45_678_901 * speed),
                possible_tokens=100_000_000,
                output_tokens=24,
            )
            for tenant in ("acme", "a-tenant-with-a-long-name-of-the-kind-that-people-give")
        ]
        return summary_by_tenant(results, 10.0)

    return {"round_robin": run(1.0), "cost": run(1.6)}


def drawn(given, width=80, **options):
    out = StringIO()
    console = Console(file=out, width=width, **options)
    console.print(comparison_table(given))
    return out.getvalue()


@pytest.mark.parametrize("options", [{}, {"force_terminal": True, "color_system": None}])
def test_nothing_is_cut_at_eighty_columns(options):
    text = drawn(runs(), **options)
    assert "\u2026" not in text
    assert max(map(len, text.splitlines())) <= 80
    for name in ("round_robin", "cost", "ratio", "all tenants", "acme", "people-give"):
        assert name in text


def test_every_figure_is_there_for_all_and_for_each_tenant():
    text = drawn(runs())
    for title, *_ in ROWS:
        assert len(re.findall(rf"^ +{title}  +\d", text, re.M)) == 3, title
    for figure in ("246,913,578", "123,456,789", "37.0%", "59.2%", "81.0%", "1,234 ms", "772 ms"):
        assert figure in text
    titles = [title for title, *_ in ROWS]
    assert titles == [
        *("requests", "prompt tokens", "cached tokens", "hit ratio", "hit ratio possible"),
        *("TTFT p50", "TTFT p95", "TPOT p50", "ITL p50", "output tokens/s", "goodput requests/s"),
    ]


def test_both_policies_stand_side_by_side_with_their_ratio():
    (cached, *_) = [line for line in drawn(runs()).splitlines() if line.strip().startswith("cached tokens")]
    assert cached.split()[2:] == ["91,357,802", "146,172,482", "1.60"]


def test_what_was_not_measured_is_a_dash():
    given = runs()
    given["round_robin"]["all"]["tpot_ms_p50"] = None
    (row, *_) = [line for line in drawn(given).splitlines() if line.strip().startswith("TPOT")]
    assert row.split()[2:] == ["-", "34.4", "ms", "-"]
