"""The radix tree, case by case; tests/property compares it with a plain dictionary under random operations."""

from array import array

from radix_cache.tree import RadixTree


def path(text: str) -> "array[int]":
    """One block a letter; hashes are chained as in blocks.py: equal only with everything before equal."""
    return array("Q", [hash(text[: end + 1]) & (2**64 - 1) for end in range(len(text))])


def tree_of(**held: list[str]) -> RadixTree[str]:
    tree: RadixTree[str] = RadixTree()
    for holder, texts in held.items():
        for now, text in enumerate(texts):
            tree.record(path(text), holder, float(now))
    tree.check()
    return tree


def test_an_empty_tree_and_an_empty_query_match_nothing():
    assert RadixTree().match(path("abc")) == {}
    assert tree_of(w=["abc"]).match(path("")) == {}
    assert tree_of(w=[""]).match(path("abc")) == {}


def test_a_match_counts_leading_blocks_only():
    tree = tree_of(w=["abcdef"])
    assert tree.match(path("abcdef")) == {"w": 6}
    assert tree.match(path("abcdefgh")) == {"w": 6}
    assert tree.match(path("abcxxx")) == {"w": 3}
    assert tree.match(path("xbcdef")) == {}


def test_a_split_keeps_both_halves_reachable():
    tree = tree_of(w=["abcdef", "abcxyz"])
    assert len(tree) == 3
    assert tree.match(path("abcdef")) == {"w": 6}
    assert tree.match(path("abcxyz")) == {"w": 6}
    assert tree.match(path("abcd")) == {"w": 4}


def test_a_split_leaves_every_holder_what_it_had():
    tree = tree_of(deep=["abcdef"], shallow=["ab"], new=["abcxyz"])
    assert tree.match(path("abcdef")) == {"deep": 6, "shallow": 2, "new": 3}


def test_a_longer_prompt_grows_the_leaf_instead_of_splitting_it():
    tree = tree_of(w=["abc", "abcdef"])
    assert len(tree) == 1
    assert tree.match(path("abcdef")) == {"w": 6}


def test_a_shorter_prompt_splits_nothing():
    tree = tree_of(w=["abcdef"], v=["abc"])
    assert len(tree) == 1
    assert tree.match(path("abcdef")) == {"w": 6, "v": 3}


def test_recording_twice_is_recording_once():
    tree = tree_of(w=["abc", "abc"])
    assert tree.held("w") == 3
    assert tree.blocks == 3


def test_shortening_cuts_the_path_and_what_hung_below_it():
    tree = tree_of(w=["abcdef", "abcxyz"])
    tree.shorten(path("abcdef"), "w", 2)
    tree.check()
    assert tree.match(path("abcdef")) == {"w": 2}
    assert tree.match(path("abcxyz")) == {"w": 2}


def test_shortening_one_branch_leaves_the_other():
    tree = tree_of(w=["abcdef", "abcxyz"])
    tree.shorten(path("abcdef"), "w", 4)
    assert tree.match(path("abcdef")) == {"w": 4}
    assert tree.match(path("abcxyz")) == {"w": 6}


def test_shortening_to_what_is_held_or_more_changes_nothing():
    tree = tree_of(w=["abc"])
    tree.shorten(path("abc"), "w", 3)
    tree.shorten(path("abcdef"), "w", 5)
    tree.shorten(path("xyz"), "w", 0)
    tree.shorten(path("abc"), "nobody", 0)
    assert tree.match(path("abc")) == {"w": 3}


def test_a_forgotten_holder_is_gone_at_once_and_its_remains_are_swept_later():
    tree = tree_of(w=["abcdef"], v=["abc"])
    tree.forget("w")
    assert tree.match(path("abcdef")) == {"v": 3}
    assert tree.blocks == 6
    tree.sweep(10)
    tree.check()
    assert tree.blocks == 3


def test_a_holder_that_comes_back_starts_with_nothing():
    tree = tree_of(w=["abcdef"])
    tree.forget("w")
    tree.record(path("ab"), "w", 9.0)
    assert tree.match(path("abcdef")) == {"w": 2}


def test_eviction_takes_the_least_recently_used_leaf_first():
    tree = tree_of(w=["abcd", "abxy", "abcd"])
    tree.evict("w", 4)
    tree.check()
    assert tree.match(path("abcd")) == {"w": 4}
    assert tree.match(path("abxy")) == {"w": 2}


def test_eviction_takes_the_tail_of_a_run_before_its_head():
    tree = tree_of(w=["abcdef"])
    tree.evict("w", 4)
    assert tree.match(path("abcdef")) == {"w": 4}


def test_a_stem_outlives_its_leaves_however_old_it_is():
    tree = tree_of(w=["abcd", "abxy"])
    tree.evict("w", 2)
    assert tree.match(path("abcd")) == {"w": 2}
    tree.evict("w", 0)
    assert len(tree) == 0


def test_a_run_that_grew_is_still_evicted_from_its_end_after_a_split():
    tree: RadixTree[str] = RadixTree()
    tree.record(path("a"), "w", 0.0)
    tree.record(path("aaa"), "v", 0.0)
    tree.record(path("aab"), "w", 0.0)
    tree.evict("v", 1)
    tree.check()
    assert tree.match(path("aaa")) == {"w": 2, "v": 1}


def test_evicting_one_holder_leaves_the_others():
    tree = tree_of(w=["abcd"], v=["abcd"])
    tree.evict("w", 0)
    assert tree.match(path("abcd")) == {"v": 4}


def test_idle_blocks_are_forgotten_by_age():
    tree: RadixTree[str] = RadixTree()
    tree.record(path("ab"), "w", 10.0)
    tree.record(path("xy"), "w", 20.0)
    tree.evict_idle(15.0)
    assert tree.match(path("ab")) == {}
    assert tree.match(path("xy")) == {"w": 2}


def test_shrinking_takes_the_oldest_of_all_holders():
    tree: RadixTree[str] = RadixTree()
    tree.record(path("abcd"), "w", 1.0)
    tree.record(path("wxyz"), "v", 2.0)
    tree.shrink(6)
    tree.check()
    assert tree.match(path("abcd")) == {"w": 2}
    assert tree.match(path("wxyz")) == {"v": 4}


def test_a_queue_of_uses_does_not_grow_with_cuts():
    tree: RadixTree[str] = RadixTree()
    for now in range(2000):
        tree.record(path("abcd"), "w", float(now))
        tree.shorten(path("abcd"), "w", 0)
    assert len(tree._tenures["w"].queue) < 200
