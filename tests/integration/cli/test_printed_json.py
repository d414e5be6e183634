"""Commands that print tables print the same as JSON."""

import json

from tests.stage.command_line import run_command


def lines(tmp_path, *arguments):
    """Return the values of the lines that a command prints."""
    settings = ["workers=[{url: 'http://127.0.0.1:9', kind: vllm}]", f"state_directory={tmp_path}"]
    options = [word for setting in settings for word in ("--set", setting)]
    done = run_command(*arguments, *options)
    assert done.code == 0, done.errors
    return [json.loads(line) for line in done.output.splitlines()]


def test_every_setting_is_printed_with_its_source(tmp_path):
    settings = {one["setting"]: one for one in lines(tmp_path, "explain-config", "--json")}
    assert settings["$.workers[0].kind"]["value"] == '"vllm"'
    assert settings["$.listen.port"]["source"] == "default"


def test_the_schema_of_the_settings_is_json():
    assert json.loads(run_command("schema").output)["title"] == "radixgate settings"
