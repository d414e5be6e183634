"""The simulated KV memory against a plain model: a list in order of last use, and the blocks in use."""

from hypothesis import given
from hypothesis import strategies as st

from policies.simulation.engines.block_cache import BlockCache

PATHS = [(1, 2, 3), (1, 2, 4), (1, 5), (6, 7, 8, 9), (6, 7), (10,)]
"""Prompts over a few chained blocks."""

actions = st.lists(
    st.tuples(st.sampled_from(["start", "compute", "end"]), st.integers(0, 5), st.integers(0, 2)), max_size=60
)


class Model:
    """`kept`: unused blocks, least recently used first."""

    def __init__(self, capacity):
        self.capacity, self.kept, self.running = capacity, [], []

    def used(self):
        return {block for path, published, _ in self.running for block in path[:published]}

    def start(self, path, answer):
        here = self.used() | set(self.kept)
        held = next((at for at, block in enumerate(path) if block not in here), len(path))
        private = len(path) - held + answer
        referenced = self.used() | set(path[:held])
        others = sum(private for _, _, private in self.running)
        if len(referenced) + others + private > self.capacity:
            return None
        self.kept = [block for block in self.kept if block not in path[:held]]
        excess = max(0, len(referenced) + others + private + len(self.kept) - self.capacity)
        gone, self.kept = self.kept[:excess], self.kept[excess:]
        self.running.append((path, held, private))
        return held, gone

    def compute(self, at):
        path, published, private = self.running[at]
        self.kept = [block for block in self.kept if block not in path]
        self.running[at] = (path, len(path), private - (len(path) - published))
        return path[published:]

    def end(self, at):
        path, published, private = self.running.pop(at)
        still = self.used()
        self.kept += [block for block in reversed(path[:published]) if block not in still]
        return path[:published], private


@given(capacity=st.integers(1, 12), steps=actions)
def test_what_is_held_used_and_evicted_is_that_of_a_plain_list(capacity, steps):
    cache, model = BlockCache(capacity), Model(capacity)
    for what, which, answer in steps:
        if what == "start":
            path = PATHS[which]
            expected = model.start(path, answer)
            got = cache.acquire(path, len(path) + answer)
            assert (got, cache.evicted) == (expected or (None, []))
            cache.evicted = []
        elif model.running:
            at = which % len(model.running)
            if what == "compute":
                cache.publish(model.compute(at))
            else:
                cache.release(*model.end(at))
        assert cache.in_use == len(model.used()) + sum(private for _, _, private in model.running)
        assert cache.in_use + len(model.kept) <= capacity
        for path in PATHS:
            here = model.used() | set(model.kept)
            assert [block in cache for block in path] == [block in here for block in path]


@given(capacity=st.integers(1, 12), steps=actions)
def test_what_is_kept_is_always_the_beginning_of_a_path(capacity, steps):
    cache, running = BlockCache(capacity), []
    for what, which, answer in steps:
        if what == "start":
            path = PATHS[which]
            held = cache.acquire(path, len(path) + answer)
            if held is not None:
                cache.publish(path[held:])
                running.append((path, answer))
        elif running:
            cache.release(*running.pop(which % len(running)))
        for path in PATHS:
            here = [block in cache for block in path]
            assert here == sorted(here, reverse=True)
