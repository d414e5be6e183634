"""Each alert on a real promtool: it fires where it should, keeps silent where it should, and has a runbook."""

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.observability.alert_cases import CASES, LABELS, AlertCase

ROOT = Path(__file__).parents[2]
PROMTOOL = ROOT / ".tools/prometheus/promtool"
RULES = (
    (ROOT / "helm/radixgate/files/alerts.yaml")
    .read_text(encoding="utf-8")
    .replace("$SELECTOR", LABELS)
    .replace("$FIRST_TOKEN_SECONDS", "10")
)
ALERTS = {rule["alert"]: rule for group in yaml.safe_load(RULES)["groups"] for rule in group["rules"]}

needs_promtool = pytest.mark.skipif(not PROMTOOL.exists(), reason="make test-observability installs promtool")


def test_every_alert_has_cases_and_a_runbook() -> None:
    pages = {
        page.stem: page.read_text(encoding="utf-8")
        for page in (ROOT / "docs/pages/runbooks").glob("Radixgate*.md")
    }
    assert set(CASES) == set(ALERTS) == set(pages)
    for name, text in pages.items():
        assert text.startswith(f"# {name}\n")
        assert [line for line in text.splitlines() if line.startswith("## ")] == [
            "## Effect",
            "## Look",
            "## Act",
        ]


@needs_promtool
def test_promtool_accepts_the_rules(tmp_path: Path) -> None:
    (tmp_path / "alerts.yaml").write_text(RULES, encoding="utf-8")
    checked = subprocess.run(
        [PROMTOOL, "check", "rules", tmp_path / "alerts.yaml"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@needs_promtool
@pytest.mark.parametrize("name", sorted(CASES))
def test_an_alert_fires_at_its_cause_and_keeps_silent_without(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    (tmp_path / "alerts.yaml").write_text(RULES, encoding="utf-8")
    tests = {
        "rule_files": ["alerts.yaml"],
        "evaluation_interval": "1m",
        "tests": [looked_at(name, case, fires=True), looked_at(name, case, fires=False)],
    }
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(tests), encoding="utf-8")
    run = subprocess.run(
        [PROMTOOL, "test", "rules", "tests.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


def looked_at(name: str, case: AlertCase, *, fires: bool) -> dict[str, object]:
    given = case.fires if fires else case.silent
    # `ALERTS` has a series for each alert that fires: its number says whether it does, whatever its labels are.
    return {
        "interval": "1m",
        "input_series": [{"series": series, "values": values} for series, values in given.items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)',
                "eval_time": f"{case.at}m",
                "exp_samples": [{"labels": "{}", "value": 1 if fires else 0}],
            }
        ],
    }
