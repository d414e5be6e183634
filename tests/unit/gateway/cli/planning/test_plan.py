"""`radixgate plan`: what it prints, writes, draws and refuses."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli.main import app
from gateway.cli.planning.plan_explain import explain_arithmetic
from gateway.cli.support.command_error import CommandError
from tests.unit.workers.planning.published_configs import PUBLISHED
from tests.unit.workers.planning.test_capacity import LLAMA_8B, LLAMA_70B


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B))
    return tmp_path


def run(*arguments: Any) -> str:
    # A refusal is raised: `main` prints it.
    done = CliRunner().invoke(app, ["plan", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_it_prints_whether_the_users_fit_and_how_many_would(checkpoint: Path):
    asked = ("--config-json", checkpoint, "--gpu", "h100", "--gpus", 4, "--context", 8192)
    told = run(*asked, "--users", 100)
    assert "100 users of 8,192 tokens do not fit: 51 do, or 4,224 tokens each." in told
    assert "327,680 B" in told
    assert "100 users of 8,192 tokens fit." in run(*asked, "--users", 100, "--kv-dtype", "int8")


def test_it_prints_which_parts_of_a_multimodal_model_are_not_counted(tmp_path: Path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "llava", "text_config": LLAMA_8B, "vision_config": {}}))
    assert "Only the language model is counted: the weights of vision_config come on top." in run(
        "--config-json", file
    )


def test_the_file_has_the_figures_that_the_table_has(checkpoint: Path, tmp_path: Path):
    file = tmp_path / "plan.json"
    run(
        *("--config-json", checkpoint / "config.json", "--gpus", 4, "--users", 50, "--utilisation", 1),
        *("--reserve-gb", 0, "--json", file, "--requests-per-second", 5),
    )
    result = json.loads(file.read_text())
    assert {"machine", "versions", "settings", "runs"} == result.keys()
    assert list(result["runs"]) == ["bf16", "int8", "int4"]
    figures = result["runs"]["bf16"]["all"]
    assert figures["kv_bytes_per_token"] == 327_680
    assert figures["weights_gb"] == pytest.approx(141.1, abs=0.1)
    # (320 - 141.1) GB for fifty, in whole blocks of 16.
    assert figures["context_max_tokens"] == 10_912
    assert result["runs"]["bf16"]["pools"]["prefill_replicas"] >= 1


def test_a_gpu_of_ones_own_is_given_by_numbers(checkpoint: Path, tmp_path: Path):
    file = tmp_path / "plan.json"
    own = ("--gpu", "mine", "--gpu-memory-gb", 160, "--gpu-bandwidth-gb-s", 1000, "--gpu-tflops", 100)
    run("--config-json", checkpoint, *own, "--json", file, "--utilisation", 1, "--reserve-gb", 0)
    figures = json.loads(file.read_text())["runs"]["bf16"]["all"]
    assert figures["kv_room_gb_per_gpu"] == pytest.approx(160 - 141.1, abs=0.1)
    with pytest.raises(CommandError, match="'mine' is not one of h100"):
        run("--config-json", checkpoint, *own[:4])


def test_replicas_share_the_users(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    file = tmp_path / "plan.json"
    run("--config-json", tmp_path, "--gpus", 4, "--tensor-parallel", 1, "--users", 8, "--json", file)
    assert json.loads(file.read_text())["runs"]["bf16"]["all"]["batch_per_replica"] == 2
    # More replicas than requests at one time make no request faster.
    run("--config-json", tmp_path, "--gpus", 4, "--tensor-parallel", 1, "--users", 1, "--json", file)
    alone = json.loads(file.read_text())["runs"]["bf16"]["all"]
    assert alone["decode_tokens_per_second"] == pytest.approx(alone["decode_tokens_per_second_1"])


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_it_draws_a_plot(checkpoint: Path, tmp_path: Path, ending: str):
    file = tmp_path / f"plan.{ending}"
    run("--config-json", checkpoint, "--gpus", 4, "--users", 10, "--plot", file)
    assert file.stat().st_size > 5000


def test_without_matplotlib_it_prints_what_to_install(checkpoint: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(CommandError, match=r"pip install 'radixgate\[plots\]'"):
        run("--config-json", checkpoint, "--gpus", 4, "--plot", "a.png")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--gpus", 4, "--kv-dtype", "int3"], "--kv-dtype: 'int3' is not one of fp32"),
        (["--gpus", 4, "--weight-dtype", "int3"], "--weight-dtype: 'int3'"),
        (["--gpus", 1], r"141\.1 GB of weights leave no room"),
        (["--gpus", 3], "64 heads cannot be divided over 3 GPUs"),
        (["--gpus", 4, "--cached", 8192], "--cached"),
        (["--gpus", 4, "--plot", "a.bmp"], "must end in .png"),
        (["--gpus", 4, "--plot", "/nowhere/a.png"], "cannot be written"),
        (["--gpus", 4, "--json", "/nowhere/a.json"], "cannot be written"),
        (["--gpus", 4, "--requests-per-second", 1, "--ttft-ms", 1], "TTFT"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_one_line(checkpoint: Path, arguments: list[Any], named: str):
    with pytest.raises(CommandError, match=named) as refused:
        run("--config-json", checkpoint, *arguments)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "option",
    [
        *(
            "--gpu-memory-gb",
            "--gpu-bandwidth-gb-s",
            "--gpu-tflops",
            "--parameters",
            "--reserve-gb",
            "--link-gb-s",
        ),
        *("--requests-per-second", "--ttft-ms", "--tpot-ms", "--utilisation"),
    ],
)
@pytest.mark.parametrize("figure", ["inf", "nan"])
def test_what_is_no_figure_is_refused(checkpoint: Path, option: str, figure: str):
    done = CliRunner().invoke(app, ["plan", "--config-json", str(checkpoint), "--gpus", "4", option, figure])
    assert (done.exit_code, option in done.output) == (2, True)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16", "k8v4"])
def test_no_figure_is_cut_in_a_narrow_window(checkpoint: Path, dtype: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    told = run("--config-json", checkpoint, "--gpus", 4, "--kv-dtype", dtype)
    assert "\N{HORIZONTAL ELLIPSIS}" not in told
    # The same figures twice would say nothing.
    assert "433,472 433,472" not in told


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "is not JSON"),
        ("[]", "must contain a JSON object"),
        ('{"model_type": "new", "hidden_size": 8}', "'new' is not modelled"),
        ('{"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 8}', "num_attention_heads"),
        (json.dumps(LLAMA_8B | {"model_type": "brandnew"}), "'brandnew' is not modelled"),
        (
            json.dumps(LLAMA_8B | {"quantization_config": {"quant_method": "aqlm"}}),
            r"name the weights' type \(--weight-dtype\)",
        ),
        (json.dumps(LLAMA_8B | {"kv_lora_rank": 512}), "latent"),
    ],
)
def test_a_file_without_what_the_plan_needs_is_refused(tmp_path: Path, text: str, named: str):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CommandError, match=named):
        run("--config-json", tmp_path)


def test_an_unknown_architecture_is_refused_though_its_number_of_parameters_is_given(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B | {"model_type": "brandnew"}))
    with pytest.raises(CommandError, match="not modelled"):
        run("--config-json", tmp_path, "--parameters", "8e9")


def test_a_dense_model_is_planned_by_the_number_of_parameters_that_is_given(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    assert "llama, 9.00 B parameters" in run("--config-json", tmp_path, "--parameters", "9e9")


def test_a_mixture_and_a_hybrid_show_their_active_parameters_and_their_state(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED["Qwen3-Next-80B-A3B"]))
    text = run("--config-json", tmp_path, "--gpus", "4")
    assert "79.67 B parameters (3.56 B active)" in text
    assert "24,576 B" in text
    assert "state of each sequence 77.3 MB" in text


def test_a_dense_model_shows_no_state(checkpoint: Path):
    assert "state of each sequence" not in run("--config-json", checkpoint, "--gpus", "4")


def test_weights_of_an_unknown_format_are_planned_by_the_type_that_is_named(tmp_path: Path):
    config = LLAMA_8B | {"quantization_config": {"quant_method": "compressed-tensors"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "parameters in int4" in run("--config-json", tmp_path, "--weight-dtype", "int4")


def test_the_explanation_shows_the_arithmetic_and_both_published_errors():
    text = explain_arithmetic()
    for figure in (
        "1.34 GB",
        "10.7 GB",
        "2 GiB",
        "10,986 tokens",
        "1,802 GB",
        "42 ms",
        "1.97 times",
        "1,000 x 2 x 6.98 B / 989 TFLOP/s",
        "14.4 ms",
        "4.5 ms",
        "3.2 steps",
        "4.5 steps",
        "beside 64 streams of 4,000 tokens, 1,000 prompt tokens cost\n  1.4 steps",
        "66,560",
    ):
        assert figure in text
    for figure in ("49,152", "4,718,592 B, 4.7 MB", "393 KB", "1,979", "989"):
        assert figure in text
    assert "10,986 tokens" in run("--explain").replace("\n", " ")


def test_every_gpu_is_listed_with_its_source():
    told = run("--list-gpus")
    assert "h100" in told
    assert "989 TFLOP/s" in told
    assert "with sparsity" in told
