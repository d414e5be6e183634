"""The waiting rooms: one for each model, and one for its batch work, which gets what the others leave."""

from collections.abc import Callable, Mapping
from functools import partial

from gateway.dispatch.placement import Placed
from gateway.fleet.fleet import Fleet
from gateway.queueing.shared.keys import BATCH, model_of
from gateway.queueing.waiting_room import RoomRules, WaitingRoom
from policies.admission.dispatch_window import worth_ranking_again
from radix_cache.match import WorkerId


class Rooms:
    """By queue; see gateway/queueing/shared/keys.py. `rules`: of every room. `unseat` undoes a seat. `window_tokens`: this
    gateway's part of one."""

    def __init__(
        self,
        fleet: Fleet,
        rules: RoomRules,
        unseat: Callable[[Placed], None],
        window_tokens: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        self.rules = rules
        self._fleet = fleet
        self._unseat = unseat
        self._clock = clock
        self._window_tokens = window_tokens
        self._rooms: dict[str, WaitingRoom[Placed]] = {}

    def all(self) -> Mapping[str, WaitingRoom[Placed]]:
        return self._rooms

    def of(self, queue: str) -> WaitingRoom[Placed]:
        room = self._rooms.get(queue)
        if room is None:
            model = model_of(queue)
            first = partial(self.nobody_waits_beside, model) if queue != model else _always
            room_left = partial(self._room_left, model)
            room = self._rooms[queue] = WaitingRoom(
                model,
                rules=self.rules,
                unseat=self._unseat,
                clock=self._clock,
                first=first,
                room_left=room_left,
            )
        return room

    def restate(self, rules: RoomRules) -> None:
        """Of every room from now on; see WaitingRoom."""
        self.rules = rules
        for room in list(self._rooms.values()):
            room.restate(rules)

    def room_made(self) -> None:
        """A worker may have room again."""
        waiting = [queue for queue, room in self._rooms.items() if len(room)]
        self._give_turns([queue for queue in waiting if not queue.endswith(BATCH)])
        self._give_turns([queue for queue in waiting if queue.endswith(BATCH)])

    def _give_turns(self, queues: list[str]) -> None:
        """Of several one turn each, as long as there is room: who gave one longest ago goes first."""
        turns_max = 1 if len(queues) > 1 else None
        while queues:
            queue = queues.pop(0)
            if self._rooms[queue].room_made(turns_max) and turns_max is not None:
                self._rooms[queue] = self._rooms.pop(queue)
                queues.append(queue)

    def _room_left(self, model: str, closed: set[WorkerId], tokens: int) -> bool:
        """At a worker that is not closed; see worth_ranking_again. If no worker is left, whoever waits is to hear so."""
        window = self._window_tokens()
        able = self._fleet.serving(model)
        return not able or any(
            w.id not in closed and worth_ranking_again(w.load.all_tokens_queued, tokens, window) for w in able
        )

    def nobody_waits_beside(self, model: str) -> bool:
        """For no model of its workers, batch work apart."""
        ours = (worker for worker in self._fleet if worker.provider is None)
        beside = {other for worker in ours if model in worker.models for other in worker.models}
        return not any(len(room) for queue, room in self._rooms.items() if queue in beside)


def _always() -> bool:
    return True
