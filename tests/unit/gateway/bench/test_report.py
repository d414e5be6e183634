"""Reports of the load client: the CSV file and the HTML page."""

import csv
import io

from gateway.bench.report import report_page, results_csv
from gateway.bench.results import RequestResult, summary_by_tenant


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


def test_the_csv_has_a_line_for_each_request_and_no_formulas():
    rows = list(csv.reader(io.StringIO(results_csv([result("=1+1"), result(error="x")]))))
    assert len(rows) == 3
    assert rows[1][0] == "'=1+1"
    assert rows[1][2] == "100.000"
    assert rows[2][-1] == "x"


def test_the_page_holds_its_plots_and_escapes_names():
    results = [result("<b>acme</b>"), result("globex")]
    page = report_page("model <m>", summary_by_tenant(results, 1.0), {"url": "http://x/<y>"}, results)
    assert "<svg" in page
    assert "&lt;b&gt;acme&lt;/b&gt;" in page
    assert "<b>acme" not in page
    assert "<y>" not in page
