"""`radixgate cells` on a list of cells in a real Redis."""

import asyncio
import json

from typer.testing import CliRunner

from gateway.cells.living_cells import LivingCells
from gateway.cli.main import app
from policies.cell_ownership import owner_of
from radix_cache.redis.scripts import ScriptCaller


async def joined(url):
    scripts = ScriptCaller(url)
    for cell, at in (("east", 1), ("east", 2), ("west", 3)):
        await LivingCells(
            scripts,
            prefix="c",
            cell=cell,
            url=f"http://10.0.0.{at}",
            lease_seconds=600,
            serves=lambda: True,
        ).renew()
    await scripts.close()


def run(url, *options):
    assignments = (
        f"cells.redis_url={url}",
        "cells.name=east",
        "cells.url=http://10.0.0.9",
        "cells.redis_prefix=c",
    )
    named = [part for each in assignments for part in ("--set", each)]
    return CliRunner().invoke(app, ["cells", *options, *named])


def test_it_lists_living_cells_and_names_the_cell_of_an_organisation(own_valkey):
    asyncio.run(joined(own_valkey.url))
    assert run(own_valkey.url).output.splitlines() == [
        "cell  gateways",
        "east  http://10.0.0.1 http://10.0.0.2",
        "west  http://10.0.0.3",
    ]
    expected = {name: owner_of(name, ("east", "west")) for name in ("acme", "globex", "initech")}
    lines = run(own_valkey.url, *expected).output.splitlines()[1:]
    assert dict(line.split() for line in lines) == expected
    found = json.loads(run(own_valkey.url, "acme", "--json").output)
    assert found["organisations"] == {"acme": expected["acme"]}
    assert set(found["cells"]) == {"east", "west"}


def test_without_cells_the_command_reports_that_there_are_none(own_valkey, tmp_path):
    result = run(own_valkey.url, "acme")
    assert result.exit_code == 1
    assert "no cell is alive" in str(result.exception) + result.output
    file = tmp_path / "gateway.yaml"
    file.write_text("{}")
    result = CliRunner().invoke(app, ["cells", "--config", str(file)])
    assert "the settings name no cell" in str(result.exception) + result.output
    own_valkey.kill()
    result = run(own_valkey.url)
    assert "cells.redis_url" in str(result.exception) + result.output
