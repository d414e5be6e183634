"""Turns msgspec's errors about settings into plain messages, and finds the types of settings by their paths.

A type can describe its accepted values for these messages: `Meta(extra={"form": "a day"})`.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

_AT = re.compile(r" - at (?P<key>`key` in )?`(?P<path>[^`]*)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<key>.*)`$", re.S)
_MISSING = re.compile(r"Object missing required field `(?P<key>.*)`$")
_ENUM = re.compile(r"Invalid enum value (?P<value>.*)$", re.S)
_GOT = re.compile(r"Expected `(?P<wanted>[^`]*)`, got `(?P<got>[^`]*)`$")
_BOUND = re.compile(r"Expected `(?P<wanted>[^`]*)` (?P<sign><=|>=|<|>) (?P<bound>\S+)$")
_LENGTH = re.compile(r"Expected `(?P<kind>[^`]*)` of length (?P<sign><=|>=) (?P<bound>\d+)$")

_VALUE = "*"
"""Stands in a path for any value of a mapping."""

_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "nothing",
}
_LENGTHS = {"array": ("entry", "a list"), "object": ("entry", "a mapping")}
_SIGNS = {"<=": ", at most", ">=": ", at least", "<": " below", ">": " above"}


def explain_error(message: str, root: type, unbuilt: Mapping[str, str], at: str = "$") -> str:
    """Return an error message of msgspec as `PATH: REASON`.

    Args:
        message: the message of msgspec.
        root: type of the tree that was checked.
        unbuilt: settings that are planned but not built, each with its purpose.
        at: path of the tree in the whole settings.
    """
    found = _AT.search(message)
    path = found["path"].removeprefix("$") if found else ""
    text = _AT.sub("", message)
    plain = re.sub(r"\[[^\]]*\]", "", path.replace("[...]", f".{_VALUE}").lstrip("."))
    if found and found["key"]:
        return f"{at}{path}: names must be text"
    missing, unknown = _MISSING.match(text), _UNKNOWN.match(text)
    if missing is not None:
        return f"{at}{path}.{missing['key']}: is missing"
    if unknown is not None:
        return f"{at}{path}.{unknown['key']}: {_unknown_setting(unknown['key'], plain, root, unbuilt)}"
    return f"{at}{path}: {_value_problem(text, plain, root)}"


def _unknown_setting(key: str, plain: str, root: type, unbuilt: Mapping[str, str]) -> str:
    full = f"{plain}.{key}" if plain else key
    if full in unbuilt:
        return f"{unbuilt[full]}: not built yet"
    near = difflib.get_close_matches(key, _names_at(root, plain), n=1)
    return "unknown setting" + (f" (did you mean {near[0]}?)" if near else "")


def _value_problem(text: str, plain: str, root: type) -> str:
    """Return what is wrong with a value."""
    annotation = _annotation_at(root, plain)
    choices = ", ".join(map(str, get_args(_bare(annotation)))) if _is_choice(annotation) else ""
    form = _form(annotation) or (f"one of {choices}" if choices else None)
    got, bound, length = _GOT.match(text), _BOUND.match(text), _LENGTH.match(text)
    if (enum := _ENUM.match(text)) is not None:
        return f"there is no {enum['value']}; choose {form}"
    if got is not None:
        return _wrong_type(form if choices and form else _wanted(got["wanted"]), form, got["got"])
    # A length of a list or mapping does not concern its elements, which the form describes.
    of_list = length is not None and length["kind"] in _LENGTHS
    if form is not None and not of_list and text.startswith(("Expected", "Invalid")):
        return f"expected {form}"
    if bound is not None:
        return (
            f"expected {_wanted(bound['wanted'])}{_SIGNS[bound['sign']]} {bound['bound'].removesuffix('.0')}"
        )
    if length is not None:
        unit, what = _LENGTHS.get(length["kind"], ("character", "text"))
        many = unit if length["bound"] == "1" else {"entry": "entries"}.get(unit, f"{unit}s")
        return f"expected {what} of {'at most' if length['sign'] == '<=' else 'at least'} {length['bound']} {many}"
    return f"{text[:1].lower()}{text[1:]}"


def explain_not_text(value: object) -> str:
    """Return what is wrong with a value where text is expected."""
    for kind, name in ((bool, "bool"), (int, "int"), (float, "float"), (list, "array"), (dict, "object")):
        if isinstance(value, kind):
            return _wrong_type("text", None, name)
    return "expected text"


def _wrong_type(wanted: str, form: str | None, got: str) -> str:
    quotes = "; put it in quotes" if wanted == "text" and got in ("int", "float", "bool") else ""
    # For text the expected form is enough; for other values the type that was read helps.
    found = "" if form is not None and got == "str" else f", got {_KINDS.get(got, got)}"
    return f"expected {wanted if quotes or form is None else form}{found}{quotes}"


def _wanted(kinds: str) -> str:
    """Return types such as `int | str` in words, without null."""
    return " or ".join(_KINDS.get(kind, kind) for kind in kinds.split(" | ") if kind != "null")


def type_at(root: type, location: Sequence[str | int]) -> Any:
    """Return the type of one setting, `tuple` for a list; None if there is no such setting."""
    annotation: Any = root
    for name in location:
        kind = _single(annotation)
        if isinstance(name, int):
            annotation = get_args(kind)[0] if get_origin(kind) is tuple else None
        else:
            annotation = _fields(kind).get(name)
    kind = _single(annotation)
    return get_origin(kind) or kind


def setting_paths(root: type) -> list[str]:
    """Return the paths of all settings that are not inside a list, such as `listen.port`."""
    found = []
    for name in _names_at(root, ""):
        annotation = _annotation_at(root, name)
        inside = setting_paths(_single(annotation))
        found += [f"{name}.{inner}" for inner in inside] or [name]
    return found


def _names_at(root: type, plain: str) -> list[str]:
    return list(_fields(_bare(_annotation_at(root, plain))))


def _annotation_at(root: type, plain: str) -> Any:
    annotation: Any = root
    for name in filter(None, plain.split(".")):
        annotation = _value(annotation) if name == _VALUE else _fields(_bare(annotation)).get(name)
    return annotation


def _value(annotation: Any) -> Any:
    """Return X of dict[..., X]."""
    kind = _single(annotation)
    return get_args(kind)[1] if get_origin(kind) is dict else annotation


def _fields(kind: Any) -> Mapping[str, Any]:
    """Return the fields of a struct with their types; an empty mapping for other types."""
    is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    return _struct_fields(kind) if is_struct else {}


@cache
def _struct_fields(kind: type[msgspec.Struct]) -> Mapping[str, Any]:
    # Cached, because msgspec evaluates all annotations again each time.
    return {field.encode_name: field.type for field in msgspec.structs.fields(kind)}


def _is_choice(annotation: Any) -> bool:
    return get_origin(_bare(annotation)) is Literal


def _bare(annotation: Any) -> Any:
    """Return X of X | None, tuple[X, ...] and Annotated[X, ...]; a Literal is kept unless a struct is allowed."""
    if get_origin(annotation) in (Union, UnionType):
        return _bare(_one_of(annotation))
    inner = get_args(annotation)
    return annotation if not inner or get_origin(annotation) is Literal else _bare(inner[0])


def _one_of(union: Any) -> Any:
    """Return the struct among several types, else the first type."""
    kinds = get_args(union)
    return next((kind for kind in kinds if _fields(kind)), kinds[0])


def _single(annotation: Any) -> Any:
    """Return X of X | None and Annotated[X, ...]; a tuple is kept."""
    if get_origin(annotation) in (Union, UnionType):
        return _single(_one_of(annotation))
    if get_origin(annotation) is Annotated:
        return _single(get_args(annotation)[0])
    return annotation


def _form(annotation: Any) -> str | None:
    """Return the description of accepted values in an annotation or inside it; None if there is none."""
    for note in getattr(annotation, "__metadata__", ()):
        if form := (getattr(note, "extra", None) or {}).get("form"):
            return str(form)
    return next((form for inner in get_args(annotation) if (form := _form(inner)) is not None), None)
