"""The generated parts of the documentation: settings, policies, metrics, errors, commands. `make docs` writes them.

A test compares them with the code, so that they cannot drift apart.
"""

import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import msgspec

from gateway.domain import errors
from gateway.runtime.certificates import certificate_family
from gateway.settings.tree import Settings
from gateway.telemetry.build_info import build_info
from gateway.telemetry.request_families import request_families
from gateway.wiring.cell_gauges import cell_gauges
from gateway.wiring.gauges import gauges
from policies.registry import BUILT_IN_QUEUEING, BUILT_IN_ROUTING
from tests.house.command_pages import commands_reference

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "pages"


def settings_table() -> str:
    """Every setting with its default and its meaning."""
    rows = ["| setting | default | meaning |", "|---|---|---|"]
    rows += [f"| `{path}` | {default} | {text} |" for path, default, text in _settings(Settings, "")]
    return "\n".join(rows)


def _settings(kind: Any, prefix: str) -> Iterator[tuple[str, str, str]]:
    for field in msgspec.structs.fields(kind):
        inner, description = _unwrapped(field.type)
        struct, many = _struct(inner)
        path = f"{prefix}{field.encode_name}"
        if struct is None:
            yield path, _default(field), description
            for branch in get_args(inner):
                if isinstance(branch, type) and issubclass(branch, msgspec.Struct):
                    yield from _settings(branch, f"{path}.")
        elif many:
            yield from _settings(struct, f"{path}[].")
        else:
            yield from _settings(struct, f"{path}.")


def _unwrapped(annotation: Any) -> tuple[Any, str]:
    """The type inside Annotated, and the description that came with it."""
    description = ""
    while get_origin(annotation) is Annotated:
        annotation, *notes = get_args(annotation)
        description = next((n.description for n in notes if getattr(n, "description", None)), description)
    for note in getattr(annotation, "__metadata__", ()):
        description = getattr(note, "description", None) or description
    return annotation, description


def _struct(annotation: Any) -> tuple[Any, bool]:
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation, False
    if get_origin(annotation) is tuple:
        element = get_args(annotation)[0]
        return (
            (element, True)
            if isinstance(element, type) and issubclass(element, msgspec.Struct)
            else (None, False)
        )
    return None, False


def _default(field: Any) -> str:
    if field.default is not msgspec.NODEFAULT:
        value = field.default
    elif field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    else:
        return "required"
    return "-" if value is None else f"`{msgspec.json.encode(value).decode()}`"


def policies_table() -> str:
    """Every routing policy with its options."""
    return _options_table(BUILT_IN_ROUTING)


def queues_table() -> str:
    """Every queue policy with its options."""
    return _options_table(BUILT_IN_QUEUEING)


def _options_table(policies: Iterable[Any]) -> str:
    rows = ["| policy | option | default | meaning |", "|---|---|---|---|"]
    for policy in sorted(policies, key=lambda policy: policy.name):
        options = list(_settings(policy.options_type, "")) or [("", "", "It has no options.")]
        rows += [
            f"| `{policy.name}` | {f'`{path}`' if path else ''} | {default} | {text} |"
            for path, default, text in options
        ]
    return "\n".join(rows)


def metrics() -> list[tuple[str, str, str, str]]:
    """Every metric: its name, its kind, its labels, and its HELP text."""
    nothing: Any = None  # families are only described here, never read
    return sorted(
        (
            family.name,
            family.kind,
            ", ".join(family.labels),
            family.text,
        )
        for family in (
            *request_families(nothing),
            *gauges(*[nothing] * 9),
            *cell_gauges(nothing, nothing, nothing),
            build_info(nothing),
            certificate_family(nothing),
        )
    )


def metrics_table() -> str:
    """Every metric with its labels and its meaning."""
    rows = [f"| `{name}` | {kind} | {labels} | {text} |" for name, kind, labels, text in metrics()]
    return "\n".join(["| metric | type | labels | meaning |", "|---|---|---|---|", *rows])


def errors_table() -> str:
    """Every error that a client can see."""
    found = [
        cls
        for _, cls in inspect.getmembers(errors, inspect.isclass)
        if issubclass(cls, errors.GatewayError) and cls is not errors.GatewayError and "status" in vars(cls)
    ]
    rows = sorted((cls.status, cls.code, cls.type, _first_line(cls)) for cls in found)
    head = ["| status | code | type | meaning |", "|---|---|---|---|"]
    return "\n".join(
        head + [f"| {status} | `{code}` | `{kind}` | {meaning} |" for status, code, kind, meaning in rows]
    )


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n\n")[0].replace("\n", " ")


PARTS = {
    "settings": ("reference/settings.md", settings_table),
    "policies": ("reference/policies.md", policies_table),
    "queues": ("reference/policies.md", queues_table),
    "metrics": ("reference/metrics.md", metrics_table),
    "errors": ("reference/errors.md", errors_table),
    "commands": ("reference/commands.md", commands_reference),
}
"""The page of each generated part, and what makes the part."""


def pages() -> dict[Path, str]:
    """The pages with generated parts, as they should be."""
    texts: dict[Path, str] = {}
    for name, (page, make) in PARTS.items():
        path = PAGES / page
        text = texts.get(path) or path.read_text(encoding="utf-8")
        begin, end = f"<!-- {name}: generated by `make docs` -->", f"<!-- end of {name} -->"
        pattern = re.compile(re.escape(begin) + r".*?" + re.escape(end), re.S)
        texts[path], count = pattern.subn(lambda _, m=make, b=begin, e=end: f"{b}\n\n{m()}\n\n{e}", text)
        if count != 1:
            raise SystemExit(f"{page} has no place for {name}")
    return texts


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        print(f"{path.relative_to(ROOT)} is up to date")
