"""`radixgate index`: shows, checks, repairs and clears the prefix index that all gateways share."""

import asyncio
import sys
from collections.abc import Coroutine, Iterable
from typing import Annotated, Any, TypeVar

import typer

from gateway.cli.support.command_error import CommandError
from gateway.cli.support.deployment import REDIS, find_deployment
from gateway.cli.support.index_access import NamespaceSelection, copy_index, open_index
from gateway.cli.support.index_stats import index_stats
from gateway.cli.support.options import Assignments, ConfigFile
from gateway.settings.tree import Settings
from gateway.telemetry import logs
from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace
from radix_cache.shared.audit import Violation, find_violations
from radix_cache.shared.index_counts import UNKNOWN_NAMESPACE, namespaces_of, unpack_namespace
from radix_cache.shared.keys import TreeId
from radix_cache.shared.repair import repair as repaired
from radix_cache.shared.tree_drawing import DrawingOptions, draw_tree

app = typer.Typer(
    help="Show, check and clear the prefix index. The index records which worker has cached which beginnings of "
    "prompts. It is in the Redis of the settings; with `redis.url: embedded` a gateway has to run.",
    rich_markup_mode=None,
)

Result = TypeVar("Result")

Model = Annotated[str | None, typer.Option("--model", "-m", help="Only this model.", show_default=False)]
Tenant = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        "-t",
        help="Only the cache of this tenant, or of an isolation group as group:NAME. The empty text '' is the "
        "shared cache.",
        show_default=False,
    ),
]
OfWorker = Annotated[
    str | None, typer.Option("--worker", "-w", help="Only blocks of this worker.", show_default=False)
]


@app.command()
def stats(
    config: ConfigFile = None,
    set_: Assignments = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show counts of the index by model and isolation group, and by worker.

    A node is a sequence of blocks without a branch; a block is as many tokens as the model's block size. A
    prediction is a prompt of a running request, which a worker will have cached.
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
        typer.Option(help="Number of levels to draw; by default as many as fit.", min=1, show_default=False),
    ] = None,
    nodes: Annotated[
        int, typer.Option(help="Largest number of nodes to draw, those near the root first.", min=1)
    ] = 50,
) -> None:
    """Draw the tree of the index.

    Each node shows its blocks, counted from the start of the prompt, its age, and the workers that have the blocks
    with their numbers. The index contains only hashes of blocks, from which prompts cannot be read.
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
        typer.Option("--repair", help="Remove wrong entries; if that is not enough, clear the namespace."),
    ] = False,
) -> int:
    """Check the index in Redis for errors: exit code 0 if there are none, else 1 and a line for each error.

    Gateways may keep running. With --repair the exit code is 0 if nothing is wrong afterwards. Repair is safe: the
    index only records what workers have cached, no answer depends on it, and removed entries are learnt again.
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
        typer.Option(
            "--worker", "-w", help="Forget all blocks of this worker; cannot be combined.", show_default=False
        ),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Clear the whole index.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Clear the index of a model, a tenant, a model of a tenant, a worker, or everything.

    Requests continue; until the index has learnt again, they may go to workers that have none of the prompt cached.
    """
    ways = [model is not None or tenant is not None, worker is not None, all_]
    if sum(ways) != 1:
        raise CommandError("clear: give --model and --tenant, or --worker, or --all (see --help)", 2)
    settings = _settings(config, set_)
    if worker is not None:
        _run(_clear_worker(settings, WorkerId(worker), yes))
    else:
        _run(_clear_namespaces(settings, NamespaceSelection.from_options(settings, model, tenant), yes))


def _settings(config: ConfigFile, assignments: Assignments) -> Settings:
    """Read settings that need not be complete: only Redis and the state directory are used."""
    logs.configure_logging("error")
    return find_deployment(config, assignments, REDIS).settings


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(work)


async def _show(
    settings: Settings, selection: NamespaceSelection, worker: str | None, depth: int | None, nodes: int
) -> list[str]:
    async with open_index(settings) as access:
        replica = await copy_index(access, settings)
    if worker is not None and worker not in replica.tenures:
        raise _unknown_worker(worker, replica.tenures)
    spaces = namespaces_of(replica)
    view = DrawingOptions(
        namespaces=None
        if selection.everything
        else frozenset(identity for identity, space in spaces.items() if selection.includes(space)),
        worker=WorkerId(worker) if worker is not None else None,
        depth_max=depth,
        nodes_max=nodes,
    )

    def title(tree: TreeId) -> str:
        space = spaces.get(tree, UNKNOWN_NAMESPACE)
        return f"{_title(space)}  blocks of {space.block_size} tokens"

    return list(draw_tree(replica, view, title))


async def _verify(settings: Settings, repair: bool) -> int:
    nodes = blocks = wrong = left = 0
    names = set[bytes]()
    async with open_index(settings) as access:
        reading = access.reading
        spaces = sorted(await reading.trees() | (await reading.names()).keys())
        for namespace in spaces:
            tree = await reading.tree(namespace)
            # Read after the tree, so that every tenure in the tree is known.
            tenures = await reading.tenures()
            names.add(tree.name or namespace)
            found = list(find_violations(tree, tenures, access.keys))
            nodes += len(tree.nodes)
            blocks += sum(len(node.run or ()) for node in tree.nodes.values())
            wrong += len(found)
            title = f"{_title(unpack_namespace(tree.name or b''))}  {namespace.hex()}"
            for violation in found:
                print(f"{title}: {_violation_text(violation)}")
            if found and repair:
                remaining, cleared = await repaired(access.store, reading, tree, tenures)
                left += len(remaining)
                print(f"{title}: {'cleared' if cleared else 'repaired'}")
        print(f"{len(names)} namespaces, {nodes} nodes, {blocks} blocks: {_count_text(wrong)}")
        if wrong and repair:
            print(f"After the repair: {_count_text(left)}")
    return 1 if (left if repair else wrong) else 0


def _violation_text(violation: Violation) -> str:
    return violation.text if violation.node is None else f"node {violation.node:016x}: {violation.text}"


def _count_text(number: int) -> str:
    return "nothing is wrong." if not number else f"{number} violation{'s' if number > 1 else ''}."


async def _clear_namespaces(settings: Settings, selection: NamespaceSelection, yes: bool) -> None:
    async with open_index(settings) as access:
        names = await access.reading.names()
        selected = {
            identity: space
            for identity in names
            if selection.includes(space := unpack_namespace(names[identity])) or selection.everything
        }
        if selection.everything:
            # Trees that have lost their names are cleared too.
            selected.update(dict.fromkeys(await access.reading.trees() - names.keys(), UNKNOWN_NAMESPACE))
        if not selected:
            print("The index has nothing that matches: nothing was cleared.")
            return
        for title in sorted({_title(space) for space in selected.values()}):
            print(f"  {title}")
        count = len({names.get(identity, identity) for identity in selected})
        _confirm(f"Clear {count} namespace{'s' if count > 1 else ''}?", yes)
        for identity in selected:
            await access.store.clear(identity)
        print(f"Cleared {count} namespace{'s' if count > 1 else ''}.")


async def _clear_worker(settings: Settings, worker: WorkerId, yes: bool) -> None:
    async with open_index(settings) as access:
        current = (await access.reading.tenures()).current
        if worker not in current:
            raise _unknown_worker(worker, current)
        _confirm(f"Forget all blocks of {worker}?", yes)
        await access.store.tenure(worker, ends=current[worker])
        print(f"Forgot all blocks of {worker}; a running gateway removes them from Redis.")


def _confirm(question: str, yes: bool) -> None:
    """Ask the user unless `yes`. Raises CommandError without a terminal, and Abort on a no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError("clear: there is no terminal to ask for confirmation; give --yes", 2)
    typer.confirm(question, abort=True)


def _unknown_worker(worker: str, known: Iterable[str]) -> CommandError:
    there = ", ".join(sorted(known)) or "none"
    return CommandError(f"the index has no worker {worker!r}; it has: {there}")


def _title(space: Namespace) -> str:
    return f"{space.model}  {space.group or '(shared)'}"
