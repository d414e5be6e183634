"""Service classes: how soon a first token is wanted, and what becomes of a request that cannot have it.

    voice    150 ms   somebody is speaking          code     200 ms   somebody is typing
    chat     500 ms   somebody is reading           batch   2000 ms   nobody waits for it

A class is of a request, its plan says which ones a tenant may have. Inside a tenant the more urgent class goes
first; across tenants it changes nothing (policy `priority` apart), for everybody would call himself urgent. Batch
work is the exception: it gets what the others leave.
"""

from typing import Literal

import msgspec

Late = Literal["wait", "next", "demote", "reject"]


class ServiceClass(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One class. `level`: 0 is the most urgent. `background`: it goes when nobody else waits.

    `late`, where no first token can be expected within `ttft_seconds`:
      wait     it waits its turn all the same
      next     it goes to the first choice that can keep the target, if any can; else it waits
      demote   it becomes a batch request, if no choice can keep it
      reject   it is turned away, if no choice can keep it
    `sheds`: its waiting is kept short while a queue stands; see shed_after_seconds.
    """

    name: str
    level: int
    ttft_seconds: float
    late: Late = "wait"
    sheds: bool = False
    background: bool = False


VOICE = ServiceClass(name="voice", level=0, ttft_seconds=0.15, late="reject", sheds=True)
CODE = ServiceClass(name="code", level=1, ttft_seconds=0.2, late="next", sheds=True)
CHAT = ServiceClass(name="chat", level=2, ttft_seconds=0.5)
BATCH = ServiceClass(name="batch", level=3, ttft_seconds=2.0, background=True)
