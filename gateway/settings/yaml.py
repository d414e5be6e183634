"""Reads YAML for settings, and refuses duplicate names, endless nesting and special values, naming the line.

Dates stay text; the type of the setting converts them.
"""

import re
from typing import Any

import yaml

from gateway.settings.types import SettingsProblem

DEPTH_MAX = 32
NODES_MAX = 500_000
"""Bounds of the document after aliases are expanded: an alias of a few bytes may be many values."""

Location = tuple[str | int, ...]
"""The place of a value in the settings: names of mappings and numbers of list elements."""

_TAG = "tag:yaml.org,2002:"
_PLAIN = {_TAG + kind for kind in ("str", "int", "float", "bool", "null", "seq", "map")}
_MERGE = _TAG + "merge"


class _Loader(yaml.SafeLoader):
    """A loader of YAML's safe types without dates. As in YAML 1.2, `off`, `on`, `yes` and `no` are text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in (_TAG + "timestamp", _TAG + "bool")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_TAG + "bool", re.compile("^([Tt]rue|TRUE|[Ff]alse|FALSE)$"), list("tTfF"))


def parse_yaml(text: str, source: str, at: Location = ()) -> Any:
    """Return the value of one YAML document; None if the text is empty.

    Args:
        text: the document.
        source: name of the file or variable, for error messages.
        at: place of the value in the settings.

    Raises:
        SettingsProblem: the text is not valid YAML, or has a value that settings cannot have.
    """
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _NodeChecker(source).check(node, at)
        return loader.construct_document(node)
    except yaml.YAMLError as err:
        mark = getattr(err, "problem_mark", None)
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""
        problem = getattr(err, "problem", None) or getattr(err, "reason", None) or "it cannot be read"
        raise SettingsProblem(f"{source}: not valid YAML: {problem}{where}") from err
    except RecursionError as err:
        raise SettingsProblem(f"{source}: is nested too deeply, or contains itself") from err
    except SettingsProblem:
        raise
    except ValueError as err:
        raise SettingsProblem(f"{source}: not valid YAML: {err}") from err
    finally:
        if loader is not None:
            loader.dispose()


class _NodeChecker:
    """Checks all nodes of a document before values are built."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._nodes = 0

    def check(self, node: yaml.Node, at: Location, depth: int = 0) -> None:
        """Raise SettingsProblem if the node, or a node inside it, cannot be part of settings."""
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise SettingsProblem(f"{self._source}: has more than {NODES_MAX} values")
        if depth > DEPTH_MAX:
            raise SettingsProblem(f"{self._source}: {path(at)}: is nested too deeply, or contains itself")
        if node.tag not in _PLAIN:
            raise self._problem(node, at, f"!!{node.tag.removeprefix(_TAG)} cannot be used in settings")
        if isinstance(node, yaml.SequenceNode):
            for number, element in enumerate(node.value):
                self.check(element, (*at, number), depth + 1)
        elif isinstance(node, yaml.MappingNode):
            self._mapping(node, at, depth)

    def _mapping(self, node: yaml.MappingNode, at: Location, depth: int) -> None:
        names = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._problem(key, at, "a name is not text")
            if key.tag not in (_TAG + "str", _MERGE):
                raise self._problem(key, at, f"the name {key.value} is not text; put it in quotes")
            inside = at if key.tag == _MERGE else (*at, key.value)
            if key.value in names:
                raise self._problem(key, inside, "is given twice")
            names.add(key.value)
            self.check(value, inside, depth + 1)

    def _problem(self, node: yaml.Node, at: Location, reason: str) -> SettingsProblem:
        return SettingsProblem(f"{path(at)}: {reason} ({self._source}, line {node.start_mark.line + 1})")


def path(location: Location) -> str:
    """Return the place of a setting as error messages show it: `$.workers[0].kind`."""
    return "$" + "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in location)
