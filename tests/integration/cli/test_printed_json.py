"""Commands that print tables print the same as JSON."""

import json
import subprocess
import sys


def lines(tmp_path, *arguments):
    """Return the values of the lines that a command prints."""
    settings = ["workers=[{url: 'http://127.0.0.1:9', kind: vllm}]", f"state_directory={tmp_path}"]
    options = [word for setting in settings for word in ("--set", setting)]
    done = subprocess.run(
        [sys.executable, "-m", "gateway", *arguments, *options], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_setting_is_printed_with_its_source(tmp_path):
    settings = {one["setting"]: one for one in lines(tmp_path, "explain-config", "--json")}
    assert settings["$.workers[0].kind"]["value"] == '"vllm"'
    assert settings["$.listen.port"]["source"] == "default"


def test_the_schema_of_the_settings_is_json():
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "schema"], capture_output=True, text=True, timeout=120
    )
    assert json.loads(done.stdout)["title"] == "radixgate settings"
