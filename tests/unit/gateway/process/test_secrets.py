"""The deployment secret: made once, kept private, or given by the settings."""

import pytest

from gateway.process.secrets import deployment_secret
from gateway.settings.tree import Settings
from gateway.settings.types import Secret, SettingsProblem


def test_a_deployment_secret_is_made_once_and_kept_private(tmp_path):
    settings = Settings(state_directory=str(tmp_path / "state"))
    first = deployment_secret(settings)
    assert deployment_secret(settings) == first
    assert len(first) == 64
    file = tmp_path / "state" / "deployment.secret"
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["deployment.secret"]


def test_a_given_secret_is_used_and_nothing_is_written(tmp_path):
    settings = Settings(state_directory=str(tmp_path / "state"), deployment_secret=Secret("given"))
    assert deployment_secret(settings) == b"given"
    assert not (tmp_path / "state").exists()


def test_a_state_directory_that_cannot_be_made_is_a_settings_problem(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsProblem, match=r"^\$\.state_directory: "):
        deployment_secret(Settings(state_directory=str(tmp_path / "file" / "state")))
