"""`radixgate index`: look at the prefix index that all gateways share, check it, repair it, clear it."""

import asyncio
import sys
from collections.abc import Coroutine, Iterable
from typing import Annotated, Any, TypeVar

import typer

from gateway.cli.support.command_error import CommandError
from gateway.cli.support.index_access import NamespaceSelection, copy_index, open_index
from gateway.cli.support.index_stats import index_stats
from gateway.cli.support.options import Assignments, ConfigFile
from gateway.settings.sources import load_settings
from gateway.settings.tree import Settings
from gateway.telemetry import logs
from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace
from radix_cache.shared.audit import Violation, violations
from radix_cache.shared.census import UNKNOWN, spaces_of, unpacked
from radix_cache.shared.keys import NamespaceId
from radix_cache.shared.repair import repair as repaired
from radix_cache.shared.tree_drawing import View, drawn

app = typer.Typer(
    help="Look at the prefix index, check it, clear it. It tells which worker has cached which beginnings of "
    "prompts, and lives in the Redis of the settings; with `redis.url: embedded` a gateway has to run.",
    rich_markup_mode=None,
)

Result = TypeVar("Result")

Model = Annotated[
    str | None, typer.Option("--model", "-m", help="Only this model, by its name.", show_default=False)
]
Tenant = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        "-t",
        help="Only the cache of this tenant; of a group of tenants as group:NAME. '' is the one that all share.",
        show_default=False,
    ),
]
OfWorker = Annotated[
    str | None, typer.Option("--worker", "-w", help="Only what this worker holds.", show_default=False)
]


@app.command()
def stats(
    config: ConfigFile = None,
    set_: Assignments = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Count what there is: by model and tenant group, and by worker.

    A node is a run of blocks that no path leaves; a block stands for as many tokens as the model's block size. A
    prediction is a request under way that will bring a path to a worker.
    """
    settings = _settings(config, set_)
    print("\n".join(_run(index_stats(settings, json))))


@app.command()
def show(
    config: ConfigFile = None,
    set_: Assignments = None,
    model: Model = None,
    tenant: Tenant = None,
    worker: OfWorker = None,
    depth: Annotated[
        int | None,
        typer.Option(help="Levels of nodes; by default as many as fit.", min=1, show_default=False),
    ] = None,
    nodes: Annotated[int, typer.Option(help="Nodes, those near the root first.", min=1)] = 50,
) -> None:
    """Draw the tree. Each node: its blocks, counted from the start of the prompt; its age; who holds how many.

    Prompts cannot be read from it: a block is known by its hash.
    """
    settings = _settings(config, set_)
    print(
        "\n".join(
            _run(
                _show(
                    settings, NamespaceSelection.from_options(settings, model, tenant), worker, depth, nodes
                )
            )
        )
    )


@app.command()
def verify(
    config: ConfigFile = None,
    set_: Assignments = None,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Take out what is wrong; where that does not help, the namespace."),
    ] = False,
) -> int:
    """Check all that must hold of the tree in Redis: exit code 0 if it does, 1 and a line each if not.

    Gateways may run meanwhile. With --repair: 0 if nothing is wrong afterwards. What goes is a memory of caches: no
    answer depends on it, and it is learnt again.
    """
    return _run(_verify(_settings(config, set_), repair))


@app.command()
def clear(
    config: ConfigFile = None,
    set_: Assignments = None,
    model: Model = None,
    tenant: Tenant = None,
    worker: Annotated[
        str | None,
        typer.Option("--worker", "-w", help="All that this worker holds, by itself.", show_default=False),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Everything.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Forget: a model, a tenant, a model of a tenant, a worker, or everything.

    Requests go on; until the index has learnt again, they may be computed where nothing is cached.
    """
    ways = [model is not None or tenant is not None, worker is not None, all_]
    if sum(ways) != 1:
        raise CommandError("clear: say one of --model and --tenant, --worker, --all (see --help)", 2)
    settings = _settings(config, set_)
    if worker is not None:
        _run(_clear_worker(settings, WorkerId(worker), yes))
    else:
        _run(_clear(settings, NamespaceSelection.from_options(settings, model, tenant), yes))


def _settings(config: ConfigFile, assignments: Assignments) -> Settings:
    """They need not be complete: only Redis and the state directory are looked at."""
    logs.configure_logging("error")
    return load_settings(config, assignments=assignments or (), complete=False).settings


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(work)


async def _show(
    settings: Settings, wanted: NamespaceSelection, worker: str | None, depth: int | None, nodes: int
) -> list[str]:
    async with open_index(settings) as access:
        copy = await copy_index(access, settings)
    if worker is not None and worker not in copy.tenures:
        raise _no_worker(worker, copy.tenures)
    spaces = spaces_of(copy)
    view = View(
        namespaces=None
        if wanted.everything
        else frozenset(identity for identity, space in spaces.items() if wanted.includes(space)),
        worker=WorkerId(worker) if worker is not None else None,
        depth_max=depth,
        nodes_max=nodes,
    )

    def title(namespace: NamespaceId) -> str:
        space = spaces.get(namespace, UNKNOWN)
        return f"{_titled(space)}  blocks of {space.block_size} tokens"

    return list(drawn(copy, view, title))


async def _verify(settings: Settings, repair: bool) -> int:
    nodes = blocks = wrong = left = 0
    async with open_index(settings) as access:
        reading = access.reading
        spaces = sorted(await reading.trees() | (await reading.names()).keys())
        for namespace in spaces:
            tree = await reading.tree(namespace)
            # Read after the tree: every tenure in it has been given by now.
            tenures = await reading.tenures()
            found = list(violations(tree, tenures))
            nodes += len(tree.nodes)
            blocks += sum(len(node.run or ()) for node in tree.nodes.values())
            wrong += len(found)
            title = f"{_titled(unpacked(tree.name or b''))}  {namespace.hex()}"
            for violation in found:
                print(f"{title}: {_said(violation)}")
            if found and repair:
                remaining, cleared = await repaired(access.store, reading, tree, tenures)
                left += len(remaining)
                print(f"{title}: {'cleared' if cleared else 'repaired'}")
        print(f"{len(spaces)} namespaces, {nodes} nodes, {blocks} blocks: {_number(wrong)}")
        if wrong and repair:
            print(f"After the repair: {_number(left)}")
    return 1 if (left if repair else wrong) else 0


def _said(violation: Violation) -> str:
    return violation.text if violation.node is None else f"node {violation.node:016x}: {violation.text}"


def _number(number: int) -> str:
    return "nothing is wrong." if not number else f"{number} violation{'s' if number > 1 else ''}."


async def _clear(settings: Settings, wanted: NamespaceSelection, yes: bool) -> None:
    async with open_index(settings) as access:
        names = await access.reading.names()
        going = {
            identity: space
            for identity in names
            if wanted.includes(space := unpacked(names[identity])) or wanted.everything
        }
        if wanted.everything:
            # A tree that has lost its name goes too.
            going.update(dict.fromkeys(await access.reading.trees() - names.keys(), UNKNOWN))
        if not going:
            print("There is nothing of that kind in the index: nothing was cleared.")
            return
        for title in sorted({_titled(space) for space in going.values()}):
            print(f"  {title}")
        _confirm(f"Clear {len(going)} namespace{'s' if len(going) > 1 else ''}?", yes)
        for identity in going:
            await access.store.clear(identity)
        print(f"Cleared {len(going)} namespace{'s' if len(going) > 1 else ''}.")


async def _clear_worker(settings: Settings, worker: WorkerId, yes: bool) -> None:
    async with open_index(settings) as access:
        current = (await access.reading.tenures()).current
        if worker not in current:
            raise _no_worker(worker, current)
        _confirm(f"Forget all that {worker} holds?", yes)
        await access.store.tenure(worker, ends=current[worker])
        print(f"Forgot all that {worker} held; a gateway sweeps up the remains.")


def _confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError("clear: there is nobody to ask; say --yes", 2)
    typer.confirm(question, abort=True)


def _no_worker(worker: str, known: Iterable[str]) -> CommandError:
    there = ", ".join(sorted(known)) or "none"
    return CommandError(f"the index knows no worker {worker!r}; it knows: {there}")


def _titled(space: Namespace) -> str:
    more = [
        f"{name} {value}" for name, value in (("adapter", space.adapter), ("media", space.media)) if value
    ]
    return "  ".join([space.model, space.group or "(shared)", *more])
