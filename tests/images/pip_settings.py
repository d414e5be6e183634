"""The pip settings of this machine, for the build of an image."""

import re
import subprocess
import sys
from pathlib import Path

SETTING = re.compile(r"(?P<name>[\w:.-]+)='(?P<value>.*)'")
NAMES = ("index-url", "extra-index-url", "find-links", "constraint", "cert", "trusted-host")


def build_arguments(directory: Path) -> list[str]:
    """Return the arguments of `buildah bud` that give pip in the image this machine's settings.

    A pip.conf is written to the directory and mounted for the build alone, with the files and directories that it
    names; none of that is part of the image.
    """
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    found: dict[str, str] = {}
    for line in listed.splitlines():
        match = SETTING.fullmatch(line.strip())
        name = match["name"].rpartition(".")[2] if match else ""
        if match and name in NAMES:
            found[name] = match["value"].replace("\\n", " ")
    settings = directory / "pip.conf"
    settings.write_text("[global]\n" + "".join(f"{name} = {value}\n" for name, value in found.items()))
    mounts = {f"{settings}:/etc/pip.conf:ro"}
    for value in " ".join(found.values()).split():
        path = Path(value.removeprefix("file://"))
        if path.name == "simple":
            path = path.parent  # The pages of an index name files beside it.
        if path.is_absolute() and path.exists():
            mounts.add(f"{path}:{path}:ro")
    return [part for mount in sorted(mounts) for part in ("-v", mount)]
