"""`radixgate init`: asks four questions and writes a settings file."""

import asyncio
from pathlib import Path
from typing import Any

import typer

from gateway.cli.support.command_error import CommandError
from gateway.cli.support.found_workers import (
    FoundWorker,
    curl_line,
    describe,
    find_workers,
    settings_of,
    worker_urls,
)
from gateway.cli.support.quick_start import gateway_ports
from gateway.cli.support.settings_file import write_settings
from gateway.process.secrets import deployment_secret
from gateway.settings.sources import load_settings
from gateway.settings.types import IDENTIFIER
from gateway.settings.workers import worker_id_of
from gateway.tenants.keys import NewKey, new_key, pepper

ALL_ADDRESSES = "0.0.0.0"  # noqa: S104  # nosec B104  (written only if other machines may connect)
FIRST_PLAN = "standard"


def init() -> None:
    """Ask four questions and write a settings file.

    Kind, models and block size are read from each worker. If tenants need keys, the first key is shown once.
    """
    found, silent = _look_at(_addresses())
    remote = typer.confirm("May other machines send requests to the gateway?", default=False)
    tenant = _tenant(required=remote)
    tree: dict[str, Any] = {listener: {"port": port} for listener, port in gateway_ports(()).items()}
    if remote:
        tree["listen"] = {"host": ALL_ADDRESSES, **tree.get("listen", {})}
    tree |= settings_of(found)
    tree["workers"] += [{"id": worker_id_of(url), "url": url} for url in silent]
    file = _write_new(tree)
    key = None
    if tenant:
        new = _new_key(file)
        key = new.text
        write_settings(file, tree | _with_tenant(tenant, new), "w")
    port = load_settings(file).settings.listen.port
    print(f"\nwritten to {file}")
    if key is not None:
        print(f"\nThe key of tenant {tenant}, shown only now:\n\n  {key}")
    print(f"\nStart the gateway with:\n\n  radixgate serve --config {file}")
    if found:
        print(f"\nand send a first request:\n\n  {curl_line(f'http://127.0.0.1:{port}', found[0], key)}")


def _ask(question: str, default: str) -> str:
    answer: str = typer.prompt(question, default=default, type=str)
    return answer.strip()


def _addresses() -> list[str]:
    """Ask for the addresses of the workers until all are valid."""
    while True:
        given = _ask("Addresses of the workers, separated by spaces", "http://127.0.0.1:8000")
        try:
            return worker_urls(given.split())
        except CommandError as err:
            print(err)


def _look_at(urls: list[str]) -> tuple[list[FoundWorker], list[str]]:
    """Print what the workers report of themselves; return it, and the addresses that do not answer.

    A worker that does not answer is named without its kind, which the gateway determines when it runs.
    """
    found: list[FoundWorker] = []
    silent = []
    for url in urls:
        try:
            found += asyncio.run(find_workers([url], None, 0, lambda _: None))
            print("\n".join(describe(found[-1])))
        except CommandError:
            print(f"{url}\n  does not answer now: the gateway will ask for its kind and models")
            silent.append(url)
    return found, silent


def _tenant(*, required: bool) -> str:
    """Ask for the name of the first tenant; empty if requests need no key."""
    if required:
        question, default = "Name of the first tenant, which gets a key", "default"
    else:
        question, default = "Name of the first tenant, which gets a key (empty: requests need no key)", ""
    while True:
        name = _ask(question, default)
        if IDENTIFIER.match(name) or (not name and not required):
            return name
        print("a name has 1 to 64 letters, digits, `.`, `_` and `-`, and begins with a letter or digit")


def _new_key(file: Path) -> NewKey:
    return new_key(pepper(deployment_secret(load_settings(file, complete=False).settings)))


def _with_tenant(tenant: str, key: NewKey) -> dict[str, Any]:
    return {
        "plans": [{"name": FIRST_PLAN, "limits": [{"requests": 600, "per": "minute"}], "concurrency": 64}],
        "tenants": [{"id": tenant, "plan": FIRST_PLAN, "keys": [{"id": key.id, "hash": key.hash}]}],
    }


def _write_new(tree: dict[str, Any]) -> Path:
    """Ask for the name of the file until a new one can be written, and return it."""
    while True:
        file = Path(_ask("File to write", "gateway.yaml"))
        try:
            write_settings(file, tree, "x")
        except FileExistsError:
            print(f"{file} exists: choose another name")
        except OSError as err:
            print(f"{file} cannot be written: {err.strerror}")
        else:
            return file
