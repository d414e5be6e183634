"""`radixgate simulate`: what it prints, writes and refuses."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.bench.parallel_trials import mean_by_subject, run_trials
from gateway.bench.simulation_report import PlotError
from gateway.cli.main import app
from gateway.cli.support.command_error import CommandError
from policies.routing.checked_policy import PolicyContractBroken
from policies.routing.round_robin import RoundRobin
from policies.simulation.outcome import averaged, summary
from policies.simulation.scenario import Scenario
from policies.simulation.trial import LIMITS, TraceSource, Trial
from policies.simulation.workloads import WorkloadParameters

CONVERSATIONS = Path(__file__).parents[4] / "data" / "mooncake" / "conversation_trace.jsonl"


def simulate(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["simulate", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def refused(*arguments: object) -> str:
    with pytest.raises(CommandError) as caught:
        CliRunner().invoke(
            app, ["simulate", *map(str, arguments)], catch_exceptions=False, standalone_mode=False
        )
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_policies_and_limits_stand_side_by_side_on_a_trace(tmp_path):
    file, drawing = tmp_path / "out.json", tmp_path / "out.svg"
    output = simulate(
        *(CONVERSATIONS, "--requests", 60, "--speed", 3, "--limits", "--processes", 1),
        *("--policy", "cost:delay_weight=0.03", "--policy", "round_robin", "--gateways", 1, "--gateways", 2),
        *("--sync-ms", 20, "--json", file, "--plot", drawing),
    )
    assert output.count("round_robin") >= 2
    assert "60 requests on 4 workers of 1,000,000 tokens, 2 gateways" in output
    result = json.loads(file.read_text())
    assert set(result) == {"machine", "versions", "settings", "runs"}
    assert set(result["runs"]) == {
        *(f"{name} @ 1 gateway" for name in ("cost:delay_weight=0.03", "round_robin", *LIMITS)),
        *(f"{name} @ 2 gateways" for name in ("cost:delay_weight=0.03", "round_robin")),
    }
    for run in result["runs"].values():
        assert (run["all"]["requests"], run["all"]["errors"]) == (60, 0)
        assert run["all"]["ttft_ms_mean"] > 0
    assert drawing.read_text().lstrip().startswith("<?xml")


def test_a_generated_workload_is_shown_by_tenant_and_the_same_every_time(tmp_path):
    given = ("--workload", "chat", "--requests", 40, "--tenants", 5, "--policy", "cost", "--processes", 1)
    runs = []
    for name in ("one", "two"):
        output = simulate(*given, "--restart-every", 5, "--seeds", 2, "--json", tmp_path / name)
        assert "busiest of" in output
        runs.append(json.loads((tmp_path / name).read_text())["runs"])
    assert runs[0] == runs[1]
    (run,) = runs[0].values()
    assert sum(tenant["requests"] for tenant in run["tenants"].values()) == run["all"]["requests"] == 40
    told = json.loads((tmp_path / "one").read_text())["settings"]
    assert {
        name: told[name] for name in ("trace", "requests", "rate", "tenants", "skew", "seed", "seeds")
    } == {"trace": "chat", "requests": 40, "rate": 2.0, "tenants": 5, "skew": 1.0, "seed": 0, "seeds": 2}


def test_a_tenant_that_sends_nothing_with_one_seed_is_averaged_over_all():
    def run(**tenants):
        whole = {"requests": sum(tenants.values()), "ttft_ms_mean": 10.0}
        return {"all": whole, "tenants": {n: summary(()) | {"requests": c} for n, c in tenants.items()}}

    found = averaged([run(a=4), run(a=2, b=2)])
    assert {name: of["requests"] for name, of in found["tenants"].items()} == {"a": 3, "b": 1}
    assert found["all"] == {"requests": 4, "ttft_ms_mean": 10.0}


def test_cells_are_named_beside_the_gateways(tmp_path):
    file = tmp_path / "out.json"
    output = simulate(
        *(
            "--requests",
            40,
            "--policy",
            "cost",
            "--gateways",
            4,
            "--cells",
            2,
            "--isolate-tenants",
            "--json",
            file,
        )
    )
    assert "4 gateways in 2 cells" in output
    settings = json.loads(file.read_text())["settings"]
    assert (settings["cells"], settings["queue"]) == (2, True)


def test_processes_change_no_figure():
    source = TraceSource(workload="chat", load=WorkloadParameters(requests=40))
    trials = [
        Trial(subject=name, source=source, scenario=Scenario(workers=2, kv_tokens=100_000), seed=seed)
        for name in ("cost", "p2c")
        for seed in (0, 1)
    ]
    arrived: list[int] = []
    apart = run_trials(trials, processes=2, progress=arrived.append)
    assert apart == run_trials(trials, processes=1, progress=lambda more: None)
    assert sum(arrived) == 160
    (runs,) = mean_by_subject(trials, apart).values()
    assert list(runs) == ["cost", "p2c"]
    assert runs["p2c"]["all"]["ttft_ms_mean"] == pytest.approx(
        sum(run["all"]["ttft_ms_mean"] for run in apart[2:]) / 2
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--policy", "nearest"), "there is no policy 'nearest'"),
        (("--policy", "cost:delay_weight"), "not OPTION=VALUE"),
        (("--policy", "cost:delay_weight=much"), "delay_weight"),
        (("--workload", "poems"), "--workload: 'poems' is not one of"),
        (("--cells", 3, "--gateways", 4), "--gateways: has to be a multiple of the 3 cells"),
        (("--cells", 2, "--sync-ms", 50), "--sync-ms: gateways of one cell"),
        (("--order", "last"), "--order: 'last' is not one of"),
        (("--waiting-order", "last"), "--waiting-order: 'last' is not one of"),
        (("--plot", "x.bmp"), "must end in .png, .svg, .pdf"),
        (("/nowhere/trace.jsonl",), "cannot be read"),
        (("--calibration", "/nowhere.json"), "cannot be read"),
    ],
)
def test_wrong_use_is_refused_in_one_line(arguments, says):
    line = refused("--requests", 10, *arguments)
    assert says in line
    assert "\n" not in line


def test_a_file_that_cannot_be_written_is_reported_before_anything_runs(tmp_path):
    for option, file in (("--json", tmp_path), ("--plot", tmp_path / "away" / "out.png")):
        assert refused(CONVERSATIONS, option, file).startswith(option)


def test_figures_are_written_before_they_are_drawn(tmp_path, monkeypatch):
    def cannot(*_):
        raise PlotError("no ink")

    monkeypatch.setattr("gateway.cli.commands.simulate.plot_policies", cannot)
    given = ("--workload", "chat", "--requests", 5, "--policy", "cost", "--processes", 1)
    files = ("--json", tmp_path / "out.json", "--plot", tmp_path / "out.png")
    with pytest.raises(CommandError, match="no ink"):
        CliRunner().invoke(
            app, ["simulate", *map(str, given + files)], catch_exceptions=False, standalone_mode=False
        )
    assert "cost" in json.loads((tmp_path / "out.json").read_text())["runs"]


@pytest.mark.parametrize("arguments", [("--gateways", 0), ("--gateways", -3)], ids=["none", "less"])
def test_there_is_a_gateway(arguments):
    result = CliRunner().invoke(app, ["simulate", *map(str, arguments)])
    assert result.exit_code == 2


def test_more_restarts_than_the_bound_are_refused():
    assert "restarts" in refused(CONVERSATIONS, "--requests", 100, "--restart-every", 1e-6)


def test_a_policy_that_fails_is_named_in_one_line(monkeypatch):
    def broken(*_):
        raise PolicyContractBroken("policy p failed: KeyError: 3 (p.py, line 7)")

    monkeypatch.setattr(RoundRobin, "rank", broken)
    with pytest.raises(CommandError, match=r"simulate: policy p failed.*line 7") as caught:
        CliRunner().invoke(
            app,
            ["simulate", "--requests", "5", "--policy", "round_robin", "--processes", "1"],
            catch_exceptions=False,
            standalone_mode=False,
        )
    assert caught.value.exit_code == 1
