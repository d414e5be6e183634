"""`radixgate plan-fleet`: what it prints, writes and refuses."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli.main import app
from gateway.cli.support.command_error import CommandError


def run(*arguments: Any) -> str:
    # A refusal is raised: `main` prints it.
    done = CliRunner().invoke(app, ["plan-fleet", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_it_prints_that_a_layout_handles_a_small_load():
    told = run("--requests-per-second", 20, "--gateways", 2)
    assert "This layout handles 20 requests/s." in told
    assert "deliveries of changes to processes" in told


def test_it_names_the_bottleneck_and_the_smallest_layout():
    told = run("--requests-per-second", 20_000, "--gateways", 4, "--models", 50, "--tenants", 1000)
    assert "This layout cannot handle 20,000 requests/s. Bottleneck: CPU of" in told
    assert "The smallest layout that handles them:" in told


def test_the_file_has_the_figures_of_both_layouts(tmp_path):
    file = tmp_path / "plan.json"
    run("--requests-per-second", 100, "--gateways", 4, "--processes", 2, "--json", file)
    result = json.loads(file.read_text())
    assert {"machine", "versions", "settings", "runs"} == result.keys()
    asked = result["runs"]["asked"]["all"]
    assert asked["deliveries_per_request"] == pytest.approx(4 * asked["changes_per_request"])
    assert result["runs"]["smallest"]["all"]["gateways"] >= 1
    assert result["settings"]["tenants"] == 10


def test_more_deployments_than_gateways_are_refused():
    with pytest.raises(CommandError, match="--deployments"):
        run("--gateways", 2, "--deployments", 3)


def test_a_load_beyond_all_layouts_is_refused_after_the_table_of_its_parts():
    result = CliRunner().invoke(app, ["plan-fleet", "--blocks", str(10**12)])
    assert isinstance(result.exception, CommandError)
    assert "no layout of up to 256 deployments handles this load" in str(result.exception)
    assert "Bottleneck: memory of a gateway process" in " ".join(result.output.split())


def test_a_rate_below_one_is_shown_as_it_is():
    assert "This layout handles 0.25 requests/s." in run("--requests-per-second", 0.25)
