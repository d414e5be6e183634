"""Rules of the code that `make check` does not hold: files, folders, names, errors, dependencies."""

import ast
import inspect
import re
import tomllib
from collections import Counter
from functools import cache

from gateway.domain import errors
from tests.house.generated import errors_table, pages
from tests.house.sources import PACKAGES, ROOT, SOURCES, module, tree

ENTRIES = {
    "gateway.__main__",
    "gateway.database.migrations.env",
    "workers.engine.grammar.grammar_check",
    "workers.engine.ablation.__main__",
    "workers.engine.tiny_checkpoint",
    "workers.engine_server.__main__",
}
"""Modules that are started, not imported."""

FILE_NAME = re.compile(r"(?<![\w/.<{*])(?:\.\./)?((?:\w+/)*\w+\.(?:py|lua))\b")
NAMES_FILES_OF_ENGINES = {"workers/probing/installed_engine.py"}
PAGES_OF_CONTRIBUTORS = (ROOT / "CONTRIBUTING.md", ROOT / "docs/pages/extend/where-things-happen.md")

MIGRATIONS = "gateway.database.migrations.versions."
"""Alembic finds these by their place."""

FOLDERS_OF_LIKE_FILES = {
    "gateway",
    "gateway/cli/commands",
    "gateway/cli/commands/engine",
    "gateway/database/migrations/versions",
}
"""Folders with one module for each command or migration; and the top, which the map of the house describes."""

MAY_CATCH_EVERYTHING = {
    "gateway/pipeline.py": "the border to the client",
    "gateway/web/middleware/error_middleware.py": "the border for requests other than inference",
    "gateway/web/direct/connection.py": "the border for requests that aiohttp does not serve",
    "gateway/concurrency/loop_supervisor.py": "the supervisor of loops",
    "gateway/fleet/fleet.py": "a probe may fail in any way, and the others are probed on",
    "gateway/kv_index/worker_event_feeds.py": "whatever a publisher of KV events sends costs its own feed only",
    "gateway/queueing/turn_giving.py": "an error of a policy ends only the request that it ranks",
    "gateway/queueing/shared/turn_requests.py": "the same, where a turn or the fleet ranks a request anew",
    "gateway/tokenization/tokenizer_file.py": "tokenizers raises nothing more precise",
    "gateway/tokenization/piecewise_encoder.py": "tokenizers raises and panics with nothing more precise",
    "policies/registry.py": "a broken package concerns only users of its policy",
    "policies/routing/checked_policy.py": "the border to policies of packages, which may raise anything",
    "workers/chat_template.py": "a template is code of another party and may raise anything",
}


CATCH_ALL = {"utils", "common", "helpers", "manager", "misc"}

SEVERAL_MODULES = {
    "workers/engine/attention/test_compile_kernels.py",
    "workers/engine/attention/test_sliding_window.py",
    "workers/engine/attention/test_triton_engine.py",
    "workers/engine/kv/test_forks.py",
    "workers/engine/kv/test_ownership.py",
    "workers/engine/scheduler/test_histories.py",
    "workers/engine/speculative/test_sampled_speculation.py",
    "workers/engine/speculative/test_speculation.py",
    "workers/engine/speculative/test_tree_speculation.py",
    "workers/engine/test_combinations.py",
    "workers/engine/test_standalone_copy.py",
}
"""Unit tests of a behaviour that several modules have together, named after that behaviour."""


def test_the_reference_pages_agree_with_the_code():
    stale = [path.name for path, text in pages().items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run `make docs`"


def test_every_error_stands_in_the_table():
    kinds = [
        cls for cls in vars(errors).values() if inspect.isclass(cls) and issubclass(cls, errors.GatewayError)
    ]
    # The first two are only what others have in common, the third has its worker's status and code, and the fourth
    # that of PromptTooLong.
    common = {errors.GatewayError, errors.RefusedByLimit}
    listed = set(kinds) - common - {errors.RefusedByWorker, errors.ContextExceeded}
    assert errors_table().count("\n| ") == len(listed)
    assert all(f"`{cls.code}`" in errors_table() for cls in listed)
    # A code that is given to single errors would stand in no table.
    assert inspect.getsource(errors).count("self.code =") == 1


def test_init_files_hold_a_docstring_and_nothing_else():
    inits = [path for path in SOURCES if path.name == "__init__.py"]
    assert [module(path) for path in inits if [type(node) for node in tree(path).body] != [ast.Expr]] == []


def test_the_docstring_of_a_package_names_each_of_its_modules():
    missing = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        if not path.stem.startswith("__")
        and not path.stem.endswith("_pb2")
        and str(path.parent.relative_to(ROOT)) not in FOLDERS_OF_LIKE_FILES
        and not re.search(rf"\b{path.stem}\b", ast.get_docstring(tree(path.parent / "__init__.py")) or "")
    ]
    assert missing == []


def test_every_module_has_a_docstring():
    assert [module(path) for path in SOURCES if not ast.get_docstring(tree(path))] == []


def test_no_folder_but_those_of_like_files_holds_more_than_25_modules():
    counts = Counter(str(path.parent.relative_to(ROOT)) for path in SOURCES if path.name != "__init__.py")
    assert {folder: count for folder, count in counts.items() if count > 25} == {}


def test_a_unit_test_lies_where_its_module_lies():
    """The test of gateway/dispatch/placement.py is tests/unit/gateway/dispatch/test_placement.py."""
    units = ROOT / "tests" / "unit"
    modules = {path.relative_to(ROOT) for path in SOURCES}
    found = [path for package in PACKAGES for path in (units / package).rglob("test_*.py")]
    lost = {
        str(test.relative_to(units))
        for test in found
        if test.relative_to(units).with_name(test.name.removeprefix("test_")) not in modules
    }
    assert sorted(lost - SEVERAL_MODULES) == []
    assert sorted(SEVERAL_MODULES - lost) == []


def test_every_file_that_a_comment_or_a_page_for_contributors_names_exists():
    there = {
        f"/{path.relative_to(ROOT)}" for path in ROOT.glob("[a-z]*/**/*") if path.suffix in (".py", ".lua")
    }
    ends = {"/" + path.split("/", at)[-1] for path in there for at in range(1, path.count("/") + 1)}
    named = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in [*PAGES_OF_CONTRIBUTORS, *SOURCES]
        for name in FILE_NAME.findall(path.read_text(encoding="utf-8"))
        if f"/{name}" not in ends and str(path.relative_to(ROOT)) not in NAMES_FILES_OF_ENGINES
    }
    assert named == set()


def test_the_drawing_of_the_gateway_has_the_layers_of_its_import_contract():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each.get("containers") == ["gateway"])
    page = (ROOT / "docs/pages/extend/where-things-happen.md").read_text(encoding="utf-8")
    drawing = page.split("```text\n")[1].split("```")[0]
    # A line with three blanks before it and several behind its names is a layer; what follows explains it.
    drawn = re.findall(r"^ {3}(\S+(?: \S+)*?) {3,}", drawing, re.MULTILINE)
    assert [[name.removesuffix(".py").removesuffix("/") for name in line.split()] for line in drawn] == [
        layer.split(" | ") for layer in layers if layer != "__main__"
    ]


def test_no_module_is_dead():
    imported = set()
    for path in [*SOURCES, *(ROOT / "tests").rglob("*.py")]:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Import):
                imported.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module)
                imported.update(f"{node.module}.{alias.name}" for alias in node.names)
    ours = {module(path) for path in SOURCES if path.name != "__init__.py"}
    dead = {name for name in ours - imported - ENTRIES if not name.startswith(MIGRATIONS)}
    assert dead == set()


@cache
def names_of(path):
    """Return the names that a module defines or imports at its top level, in branches too."""
    names = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def test_every_name_that_a_test_imports_exists():
    """Tests of clients, engines, chart and images run apart: a name that moves would break them unseen."""
    tests = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "helm").rglob("*.py")]
    modules = {module(path): path for path in [*SOURCES, *tests]}
    missing = {
        f"{path.relative_to(ROOT)}: {node.module}.{alias.name}"
        for path in tests
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PACKAGES
        for alias in node.names
        if f"{node.module}.{alias.name}" not in modules
        and (node.module not in modules or alias.name not in names_of(modules[node.module]))
    }
    assert missing == set()


def test_everything_is_caught_in_the_few_places_that_may():
    found = set()
    for path in SOURCES:
        if {"engine", "engine_server"} & {*path.relative_to(ROOT).parts}:
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ExceptHandler) and (
                node.type is None or ast.unparse(node.type) in ("Exception", "BaseException")
            ):
                found.add(str(path.relative_to(ROOT)))
    # redis_store releases what it may have been granted, and raises again.
    assert found - {"gateway/quotas/redis_store.py"} == set(MAY_CATCH_EVERYTHING)


def test_every_dependency_has_its_reason_and_its_bounds():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    reasons = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for requirement in [*project["dependencies"], *project["optional-dependencies"]["engine"]]:
        name = re.match(r"[A-Za-z0-9._-]+", requirement)[0]
        assert re.search(rf"(^|\| |, ){re.escape(name)}( \||,)", reasons, re.M), name
        assert "==" in requirement or (">=" in requirement and "<" in requirement), requirement


def test_no_module_has_a_catch_all_name():
    assert [module(path) for path in SOURCES if path.stem in CATCH_ALL] == []
