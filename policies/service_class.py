"""Service classes of requests: the target for the first token, and what happens when it cannot be kept.

    class    TTFT target    for
    voice         150 ms    a person in a conversation
    code          200 ms    a person typing (completion in an editor)
    chat          500 ms    a person reading
    batch        2000 ms    work that no person waits for

Each request has a class; the tenant's plan lists the classes that it may use. Inside a tenant the more urgent class
goes first. Across tenants the class changes nothing (policy `priority` apart), for otherwise every tenant would
call its requests urgent. Batch work is the exception: it gets what the other classes leave.
"""

from typing import Literal

import msgspec

Late = Literal["wait", "next", "demote", "reject"]
"""What happens to a request if its first token cannot be expected within its target.

wait    it waits its turn all the same
next    it goes to the first candidate that can keep the target, if any can; else it waits
demote  it becomes a batch request, if no candidate can keep the target
reject  it is turned away, if no candidate can keep the target
"""


class ServiceClass(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One service class."""

    name: str
    level: int
    """Urgency; 0 is the most urgent."""
    ttft_seconds: float
    """Target for the time to the first token."""
    late: Late = "wait"
    """What happens when the target cannot be kept."""
    sheds: bool = False
    """Whether requests that wait too long in a standing queue are turned away; see
    policies.admission.waiting_bounds.shed_after_seconds."""
    background: bool = False
    """Whether requests of this class go only when no request of another class waits."""


VOICE = ServiceClass(name="voice", level=0, ttft_seconds=0.15, late="reject", sheds=True)
CODE = ServiceClass(name="code", level=1, ttft_seconds=0.2, late="next", sheds=True)
CHAT = ServiceClass(name="chat", level=2, ttft_seconds=0.5)
BATCH = ServiceClass(name="batch", level=3, ttft_seconds=2.0, background=True)
