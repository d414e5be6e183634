"""The file of figures that `--json` names."""

import json

import pytest

from gateway.cli.support.command_error import CommandError
from gateway.cli.support.result_file import write_results


def test_a_result_file_has_machine_versions_settings_and_runs(tmp_path):
    file = tmp_path / "figures.json"
    write_results(file, {"seed": 7}, {"cost": {"all": {"ttft": 80.0}}})
    written = json.loads(file.read_text())
    assert set(written) == {"machine", "versions", "settings", "runs"}
    assert (written["settings"], written["runs"]) == ({"seed": 7}, {"cost": {"all": {"ttft": 80.0}}})
    assert "radixgate" in written["versions"]


def test_a_file_that_cannot_be_written_ends_the_command(tmp_path):
    with pytest.raises(CommandError, match=r"--json: .* cannot be written: Is a directory"):
        write_results(tmp_path, {}, {})
