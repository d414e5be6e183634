"""Rules for words: unique class names, plain prose, metric texts that stand alone, and a glossary."""

import re
from collections import Counter, defaultdict

from tests.house.generated import metrics
from tests.house.sources import ROOT, SOURCES, folders, module, prose, public_classes, words_of

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
WHERE = ROOT / "docs" / "pages" / "extend" / "where-things-happen.md"
"""The map: questions, and the file and function that answer each."""

PERSONS = re.compile(
    r"\b(who|whom|whose|whoever|whomever|nobody|somebody|everybody|anybody|someone|everyone|anyone|no one)\b",
    re.IGNORECASE,
)
NEVER = {"whoever", "whomever", "nobody", "somebody", "everybody"}
PERSONS_PER_1000_WORDS_MAX = 0.5

SPEECH = re.compile(
    r"\b(anew|again and again|told|hears?|heard|signs? of life)\b"
    r"|\b(worker|engine|gateway|queue|index|Redis|request|process|shard|policy|feed|store|peer)s? "
    r"(knows?|says?|asks?|tells?|wants?|believes?|remembers?|forgets?|sees?|thinks?|speaks?)\b",
    re.IGNORECASE,
)
"""Things as speakers, and phrases of stories: a worker reports, a gateway requests, an index has."""

NOT_ALONE = re.compile(
    r"\b(they|them|those|these|who|whom|whoever|nobody|somebody|everybody|anybody)\b"
    r"|\b(of|than|from|how often) that\b"
    r"|^(\S+ ){0,3}(it|its)\b",
    re.IGNORECASE,
)
"""What makes a text depend on another one: pronouns without their noun, "it" before any noun."""

CLAUSES = ("What", "How", "Which", "Whether", "That", "Of", "From", "Made", "Where", "When")
"""Beginnings of clipped clauses."""

HEADS_MIN = 4
"""A noun that ends so many class names is a term of the house, and stands in the glossary."""


def section(title: str) -> str:
    """Return the text of CONTRIBUTING.md below the heading, down to the next heading of its level or above."""
    found = re.search(
        rf"^(#+) {re.escape(title)}$(.*?)(?=^#{{1,2}} |\Z)", CONTRIBUTING, re.MULTILINE | re.DOTALL
    )
    assert found, f"CONTRIBUTING.md has no heading {title!r}"
    return found[2]


def rows(title: str) -> list[list[str]]:
    """Return the cells of all table rows below the heading, without the rows of column titles."""
    lines = [line for line in section(title).split("\n") if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    rules = {number for number, row in enumerate(cells) if set(row[0]) <= set("-: ")}
    return [row for number, row in enumerate(cells) if number not in rules and number + 1 not in rules]


def test_no_two_public_classes_share_a_name():
    found = defaultdict(list)
    for name, where in public_classes():
        found[name].append(where)
    assert {name: where for name, where in found.items() if len(where) > 1} == {}


def test_prose_names_things_and_not_persons():
    found, words = [], 0
    for path in SOURCES:
        for number, line in prose(path):
            words += len(line.split())
            found += [(match[0].lower(), path, number, line) for match in PERSONS.finditer(line)]
    shown = "\n".join(
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}" for _, path, number, line in found
    )
    assert NEVER & {word for word, *_ in found} == set(), shown
    rate = 1000 * len(found) / words
    assert rate < PERSONS_PER_1000_WORDS_MAX, f"{rate:.2f} per 1,000 words:\n{shown}"


def test_prose_makes_no_speakers_of_things():
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in SOURCES
        for number, line in prose(path)
        if SPEECH.search(line)
    ]
    assert found == [], "\n".join(found)


def test_the_help_of_every_metric_stands_alone():
    offenders = {
        name: text
        for name, _, _, text in metrics()
        if len(text.split()) < 4
        or not text[0].isupper()
        or not text.endswith(".")
        or text.split()[0] in CLAUSES
        or NOT_ALONE.search(text)
    }
    assert offenders == {}


def test_every_folder_stands_in_the_map_of_the_house():
    named = set(re.findall(r"`([a-z_/]+)/`", section("Map of the house")))
    assert sorted(set(folders()) - named) == []
    assert sorted(named - set(folders())) == []


def map_rows() -> list[list[str]]:
    """Return the cells of all rows of the map: the question, where it is decided, where it is done."""
    lines = [line for line in WHERE.read_text(encoding="utf-8").split("\n") if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] not in ("step", "question", "---")]


def is_defined(name: str, text: str) -> bool:
    """Return whether a file in Python, Lua or YAML defines the name: a function, a class, a value, a field."""
    pattern = (
        rf"^\s*(async )?(def|class) {name}\b|^\s*(local )?function (\w+\.)?{name}\b"
        rf'|\b{name}\b *(:[^=\n]+)?=|^\s*{name}: |"{name}"'
    )
    return re.search(pattern, text, re.MULTILINE) is not None


def test_the_files_and_names_of_the_map_exist():
    missing = []
    for question, *answers in map_rows():
        folder, text = ROOT, ""
        for quoted in re.findall(r"`([^`]+)`", " ".join(answers)):
            if re.search(r"\.(py|lua|yaml|tpl|json)$", quoted):
                # A file may be named without its folder after another file of that folder.
                file = ROOT / quoted if "/" in quoted else folder / quoted
                folder, text = file.parent, file.read_text(encoding="utf-8") if file.is_file() else ""
                missing += [] if text else [f"{question}: {quoted}"]
            elif "/" in quoted:
                missing += [] if (ROOT / quoted).is_dir() else [f"{question}: {quoted}"]
            elif re.fullmatch(r"\w+", quoted) and not is_defined(quoted, text):
                missing.append(f"{question}: {quoted}")
    assert missing == []


def test_the_map_names_one_place_where_a_question_is_decided():
    files = re.compile(r"`[\w/.-]+\.(?:py|lua|yaml|tpl|json)`")
    several = [row[0] for row in map_rows() if len(row) == 3 and len(files.findall(row[1])) > 1]
    assert several == []


def test_no_class_and_no_module_has_a_name_that_the_glossary_refuses():
    refused = {word for row in rows("Glossary") for word in re.findall(r"`(\w+)`", row[2])}
    assert refused
    names = [*public_classes(), *((path.stem, module(path)) for path in SOURCES)]
    assert sorted(f"{where}: {name}" for name, where in names if refused & set(words_of(name))) == []


def test_the_nouns_of_class_names_stand_in_the_glossary():
    heads = Counter(words_of(name)[-1] for name, _ in public_classes())
    terms = {
        word
        for row in (*rows("Glossary"), *rows("Endings of class names"))
        for word in re.findall(r"[a-z]+", row[0].lower())
    }
    assert sorted(head for head, count in heads.items() if count >= HEADS_MIN and head not in terms) == []
