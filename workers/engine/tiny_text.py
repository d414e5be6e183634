"""Generated English-like sentences, repeatable by their seed, to train the tokenizer of a tiny checkpoint on."""

import random
from collections.abc import Iterator


def _words(text: str) -> list[str]:
    return text.split()


_THINGS = _words(
    """
    account answer block bridge budget cache city client cloud context contract corner customer engine fleet
    forest garden gateway harbour house index invoice island journey keeper kitchen lantern letter library machine
    market message mirror model morning mountain network number ocean operator orchard painter parcel pattern
    policy prefix problem prompt question queue railway record region report request river router sailor school
    season server session shadow signal station stranger summary system teacher tenant theatre token traveller
    valley village visitor window winter worker
    """
)
_ACTIONS = _words(
    """
    accept answer begin borrow build carry change choose collect compare count cover deliver describe discover
    divide explain finish follow forget gather improve inspect keep learn leave measure notice open order paint
    prepare protect reach read release remember repair replace return share store stream travel understand visit
    wait watch write
    """
)
_QUALITIES = _words(
    """
    ancient bright busy careful central clever cold curious distant early empty famous final gentle golden heavy
    honest hidden large local lonely modern narrow old patient plain private quick quiet rare simple slow small
    steady strange strong sudden tired useful warm wide young
    """
)
_NAMES = _words(
    """
    Ada Alan Barbara Claude Dennis Edsger Frances Grace John Katherine Ken Leslie Margaret Radia Tony
    """
)
_LINKS = _words(
    """
    and but because while although after before when where so
    """
)
_PLACES = _words(
    """
    in on under near behind beside across above through toward without between
    """
)


def sentences(seed: int, count: int) -> Iterator[str]:
    """Yield `count` sentences, the same ones for the same seed."""
    chance = random.Random(seed)
    for _ in range(count):
        clauses = [_clause(chance) for _ in range(chance.choice((1, 1, 2, 3)))]
        text = clauses[0] + "".join(f", {chance.choice(_LINKS)} {clause}" for clause in clauses[1:])
        yield text[0].upper() + text[1:] + chance.choice(("?", "!", ".", ".", "."))


def _clause(chance: random.Random) -> str:
    subject = chance.choice(_NAMES) if chance.random() < 0.3 else _noun(chance)
    action = chance.choice(_ACTIONS)
    verb = chance.choice((_third_person(action), f"will {action}", f"did not {action}"))
    tail = f" {chance.choice(_PLACES)} {_noun(chance)}" if chance.random() < 0.5 else ""
    amount = (
        f" {chance.randint(2, 9999)} {chance.choice(_THINGS)}s"
        if chance.random() < 0.3
        else f" {_noun(chance)}"
    )
    return subject + " " + verb + amount + tail


def _third_person(action: str) -> str:
    if action.endswith("y") and action[-2] not in "aeo":
        return action[:-1] + "ies"
    return action + ("es" if action.endswith(("sh", "ch")) else "s")


def _noun(chance: random.Random) -> str:
    quality = chance.choice(_QUALITIES) + " " if chance.random() < 0.5 else ""
    return chance.choice(("the ", "the ", "a ", "this ", "every ", "our ")) + quality + chance.choice(_THINGS)
