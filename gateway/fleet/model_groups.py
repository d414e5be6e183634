"""Models that share workers, directly or by way of other models: room on their workers is decided together."""

from collections import Counter
from collections.abc import Iterable

from gateway.fleet.worker import Worker


class ModelGroups:
    """The groups of models that share workers, as of one moment.

    A group has the name of the model that most of its workers serve (of several, the first by name), so that an
    adapter that some workers load or unload does not rename the group of its base model.
    """

    def __init__(self, workers: Iterable[Worker]) -> None:
        """`workers`: those of our own."""
        self._group_of: dict[str, str] = {}
        self._workers_of: dict[str, list[Worker]] = {}
        joined: dict[str, list[Worker]] = {}
        found: dict[str, str] = {}
        for worker in workers:
            if not worker.models:
                continue
            # The workers of all groups that this worker joins become one list, under one of their models.
            names = {found.get(model, model) for model in worker.models}
            name = max(names, key=lambda each: len(joined.get(each, ())))
            members = joined.setdefault(name, [])
            for other in names - {name}:
                members += joined.pop(other, [])
            members.append(worker)
            merged = (
                worker.models.union(*(each.models for each in members)) if len(names) > 1 else worker.models
            )
            found.update(dict.fromkeys(merged, name))
        for members in joined.values():
            served = Counter(model for worker in members for model in worker.models)
            group = min(served, key=lambda model: (-served[model], model))
            self._workers_of[group] = members
            self._group_of.update(dict.fromkeys(served, group))

    def of(self, model: str) -> str:
        """Return the name of the model's group; a model without workers is a group of its own."""
        return self._group_of.get(model, model)

    def models(self) -> Iterable[tuple[str, str]]:
        """Return every model with its group."""
        return self._group_of.items()

    def workers(self) -> Iterable[tuple[str, list[Worker]]]:
        """Return every group with its workers."""
        return self._workers_of.items()
