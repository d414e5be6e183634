"""Asks pip-audit about the packages of this environment, and lists those that it knows nothing about.

    python -m tests.audit PATH_OF_PIP_AUDIT

The exit status is 1 if a package has a known vulnerability. Packages that could not be looked up are no failure: an
index without data on vulnerabilities, or no network, says nothing about them.
"""

import json
import subprocess
import sys
import sysconfig
from typing import Any

SECONDS_MAX = 300.0


def main(program: str) -> int:
    """Print the result, and return the exit status."""
    command = [
        program,
        "--path",
        sysconfig.get_paths()["purelib"],
        "--format",
        "json",
        "--progress-spinner",
        "off",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    try:
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        print("The data on vulnerabilities cannot be reached: no package was looked up.", done.stderr[-300:])
        return 0
    vulnerable = [package for package in packages if package.get("vulns")]
    unknown = [package["name"] for package in packages if "skip_reason" in package]
    for package in vulnerable:
        print(package["name"], package["version"], *(found["id"] for found in package["vulns"]))
    looked_up = len(packages) - len(unknown)
    print(f"{looked_up} of {len(packages)} packages were looked up, {len(vulnerable)} are vulnerable.")
    if unknown:
        print("Not looked up:", *unknown)
    return 1 if vulnerable else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
