"""The waiting rooms: one for each model, and one for its batch work, served while no other request waits."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Generic

from gateway.fleet.fleet import Fleet
from gateway.queueing.dispatch_windows import OwnDispatchWindows
from gateway.queueing.room_rules import RoomRules
from gateway.queueing.shared.keys import BATCH, model_of
from gateway.queueing.waiters import Placed
from gateway.queueing.waiting_room import WaitingRoom
from policies.admission.window_room import fits_window, worth_ranking_again
from radix_cache.match import WorkerId


class WaitingRooms(Generic[Placed]):
    """The waiting rooms by the name of their queue; see gateway/queueing/shared/keys.py."""

    def __init__(
        self,
        fleet: Fleet,
        rules: RoomRules,
        give_back: Callable[[Placed], None],
        window: OwnDispatchWindows,
        clock: Callable[[], float],
    ) -> None:
        """`give_back` ends a placement that was given in the moment in which its request left."""
        self.rules = rules
        """The rules of every room."""
        self._fleet = fleet
        self._give_back = give_back
        self._clock = clock
        self._window = window
        self._rooms: dict[str, WaitingRoom[Placed]] = {}

    def all(self) -> Mapping[str, WaitingRoom[Placed]]:
        """Return all rooms by the name of their queue."""
        return self._rooms

    def of(self, queue: str) -> WaitingRoom[Placed]:
        """Return the room of a queue, made at its first request."""
        room = self._rooms.get(queue)
        if room is None:
            model = model_of(queue)
            room = self._rooms[queue] = WaitingRoom(
                model,
                rules=self.rules,
                give_back=self._give_back_and_go_on,
                clock=self._clock,
                may_give_turns=partial(self._none_waits_beside, model) if queue != model else None,
                has_room=partial(self._has_room, model, queue != model),
                full_workers=partial(self._full_workers, model),
            )
        return room

    def reconfigure(self, rules: RoomRules) -> None:
        """Use these rules in every room from now on; see WaitingRoom."""
        self.rules = rules
        for room in list(self._rooms.values()):
            room.reconfigure(rules)

    def give_turns(self) -> None:
        """Give turns: a worker may have room again."""
        waiting = []
        for queue, room in self._rooms.items():
            if room.waiters.by_number:
                waiting.append(queue)
        if waiting:
            self._give_turns([queue for queue in waiting if not queue.endswith(BATCH)])
            self._give_turns([queue for queue in waiting if queue.endswith(BATCH)])

    def _give_turns(self, queues: list[str]) -> None:
        """Give one turn of each queue as long as there is room; the queue that gave one longest ago goes first."""
        turns_max = 1 if len(queues) > 1 else None
        while queues:
            queue = queues.pop(0)
            if self._rooms[queue].give_turns(turns_max) and turns_max is not None:
                self._rooms[queue] = self._rooms.pop(queue)
                queues.append(queue)

    def _has_room(self, model: str, background: bool, closed: set[WorkerId], tokens: int) -> bool:
        """Return whether a worker outside `closed` may have room; True without workers, so that waits end."""
        of_model = self._window.of(model)
        window = of_model.narrow if background else of_model.wide
        able = self._fleet.serving(model)
        ordered = self._fleet.least_loaded(model)
        if ordered is not None:
            fewest = ordered.fewest_tokens_queued(closed)
            return fewest is not None and worth_ranking_again(fewest, tokens, window)
        return not able or any(
            w.id not in closed and worth_ranking_again(w.load.all_tokens_queued, tokens, window) for w in able
        )

    def _full_workers(self, model: str) -> Collection[WorkerId] | None:
        """Return the workers without any room; None where no request waits for a worker of its own."""
        window = self._window.of(model)
        large = self._fleet.least_loaded(model) is not None
        if large or not window.awaits_one or not self.rules.passed_over_max:
            return None
        return {
            worker.id
            for worker in self._fleet.serving(model)
            if not fits_window(worker.load.all_tokens_queued, 1, window.wide)
        }

    def _give_back_and_go_on(self, placed: Placed) -> None:
        """Give back a placement whose request has left, and give the room to another one."""
        self._give_back(placed)
        self.give_turns()

    def requests_wait(self, queue: str) -> bool:
        """Return whether requests wait for room in this queue; see WaitingRoom.some_wait."""
        room = self._rooms.get(queue)
        return room is not None and room.some_wait

    def requests_wait_beside(self, model: str) -> bool:
        """Return whether requests wait for any model of the model's workers, batch work apart."""
        waiting = [queue for queue, room in self._rooms.items() if room.some_wait]
        if not waiting:
            return False
        return not self._fleet.models_beside(model).isdisjoint(waiting)

    def _none_waits_beside(self, model: str) -> bool:
        return not self.requests_wait_beside(model)
