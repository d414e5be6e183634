"""Debian's Chromium and Playwright, where `make test-browser` has installed them."""

import shutil
import sys
from pathlib import Path

TOOLS = Path(__file__).parents[2] / ".tools/browser"
CHROMIUM = shutil.which("chromium")
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]

sys.path.append(str(TOOLS / "python"))
