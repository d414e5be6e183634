"""The files of the operator console: vendored ones unchanged and with their licence, none from elsewhere."""

import hashlib
import re
from pathlib import Path

import pytest

FILES = Path(__file__).parents[4] / "gateway/web/console_files"

VENDORED = {
    # uPlot 1.6.32, dist/uPlot.esm.js and dist/uPlot.min.css of its npm package; MIT.
    "uplot.js": "5dd9b3281aa64b461b42d9945f6adb2649d346502b12281a9ae0d46599a80eba",
    "uplot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}


@pytest.mark.parametrize("name", sorted(VENDORED))
def test_a_vendored_file_is_that_of_its_release(name):
    assert hashlib.sha256((FILES / name).read_bytes()).hexdigest() == VENDORED[name]


def test_vendored_files_come_with_their_licence():
    assert "MIT License" in (FILES / "uplot.LICENSE").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name", sorted(file.name for file in FILES.iterdir() if file.suffix in (".js", ".html"))
)
def test_no_file_loads_anything_from_elsewhere_or_makes_markup_of_text(name):
    text = (FILES / name).read_text(encoding="utf-8")
    if name not in VENDORED:
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|style=", text)
        assert set(re.findall(r"https?://[^\s\"'`]+", text)) <= {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize("name", sorted(file.name for file in FILES.glob("*.js")))
def test_every_import_is_a_file_that_is_served(name):
    text = (FILES / name).read_text(encoding="utf-8")
    for imported in re.findall(r'from "\./([^"]+)"', text):
        assert (FILES / imported).exists()
