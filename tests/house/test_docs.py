"""The documentation has no broken link, and the README stays short."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)\s]+)\)")
README_LINES_MAX = 170
BYTES_MAX = {"CONTRIBUTING.md": 35_000, "docs/pages/extend/where-things-happen.md": 40_000}


def test_the_site_builds_without_a_broken_link(tmp_path):
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--config-file",
        "docs/mkdocs.yml",
        "--site-dir",
        str(tmp_path),
    ]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "reference" / "settings.html").is_file()


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "helm/OPERATIONS.md"])
def test_files_that_are_linked_exist(name):
    file = ROOT / name
    links = [link for link in LINK.findall(file.read_text(encoding="utf-8")) if "://" not in link]
    assert [link for link in links if not (file.parent / link.partition("#")[0]).exists()] == []


def test_the_readme_can_be_read_at_one_sitting():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES_MAX


def test_the_pages_for_contributors_stay_short():
    assert {
        name: size for name, most in BYTES_MAX.items() if (size := (ROOT / name).stat().st_size) > most
    } == {}
