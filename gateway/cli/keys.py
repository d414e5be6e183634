"""`radixgate keys`: make API keys, and the hashes that settings keep of them."""

import sys
from typing import Annotated

import typer

from gateway.cli.failure import Failure
from gateway.cli.options import Assignments, ConfigFile
from gateway.secret_store import deployment_secret, secret_file
from gateway.settings_sources import load
from gateway.tenants.keys import HASH_PREFIX, key_digest, key_id, new_key, pepper

app = typer.Typer(help="Make and hash API keys.", rich_markup_mode=None)


@app.command()
def new(
    config: ConfigFile = None,
    set_: Assignments = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the key alone, then id and hash.")
    ] = False,
) -> None:
    """Make a key. It is shown once; the settings keep its hash."""
    key = new_key(_pepper(config, set_))
    if quiet:
        print(key.text, key.id, key.hash)
        return
    print(f"The key, shown only now:\n\n    {key.text}\n")
    print("Its entry under tenants[].keys in the settings:\n")
    print(f'    - {{id: {key.id}, hash: "{key.hash}"}}')


@app.command("hash")
def hash_(config: ConfigFile = None, set_: Assignments = None) -> None:
    """Read a key from standard input and print its entry for the settings."""
    text = sys.stdin.readline().strip()
    identity = key_id(text)
    if identity is None:
        raise Failure("this is not a key of the form rg-<id>-<secret><checksum>, or its checksum is wrong", 2)
    print(f'- {{id: {identity}, hash: "{HASH_PREFIX}{key_digest(text, _pepper(config, set_)).hex()}"}}')


def _pepper(config: ConfigFile, assignments: Assignments) -> bytes:
    """Of the deployment that the settings describe; they need not be complete yet."""
    settings = load(config, assignments=assignments or (), complete=False).settings
    file = secret_file(settings)
    is_new = file is not None and not file.exists()
    secret = deployment_secret(settings)
    if file is not None:
        said = f"The deployment secret {'was generated' if is_new else 'is'} in {file.absolute()}"
        print(f"{said}; this key is worth nothing without it.", file=sys.stderr)
    return pepper(secret)
