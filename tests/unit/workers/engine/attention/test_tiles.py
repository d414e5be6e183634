"""Tiles cover each token once, and a launch has no more splits than its workspace holds."""

from hypothesis import given
from hypothesis import strategies as st

from workers.engine.attention.attention_backend import AttentionSpan
from workers.engine.attention.tiles import PROGRAMS, SPLITS_MAX, cut_tiles, split_count, tile_rows


@given(st.integers(0, 90), st.integers(1, 200), st.integers(1, 64), st.integers(0, 500))
def test_the_tiles_of_a_span_cover_each_of_its_tokens_once(
    start: int, count: int, most: int, row: int
) -> None:
    tiles = list(cut_tiles(AttentionSpan(start=start, count=count, blocks=[]), row, most))
    rows = [tile.row + offset for tile in tiles for offset in range(tile.count)]
    assert rows == [*range(row, row + count)]
    assert all(tile.count <= most and tile.start == start for tile in tiles)
    # The last key that a tile reads is its last token.
    assert [tile.end for tile in tiles] == [start + tile.row + tile.count - row for tile in tiles]


@given(st.integers(1, 100_000), st.integers(0, 1_000_000))
def test_contexts_are_split_only_as_far_as_the_workspace_reaches(programs: int, keys: int) -> None:
    splits = split_count(programs, keys)
    assert 1 <= splits <= SPLITS_MAX
    assert splits == 1 or programs * splits <= PROGRAMS


def test_a_long_context_alone_is_split_and_a_short_one_is_not() -> None:
    assert (split_count(8, 100), split_count(8, 4096), split_count(1, 100_000)) == (1, 16, 32)


def test_a_tile_holds_at_least_one_token_of_any_group_of_heads() -> None:
    assert [tile_rows(1, group) for group in (1, 4, 16, 24, 64, 72)] == [16, 16, 16, 32, 64, 128]
    assert [tile_rows(tokens, 4) for tokens in (4, 5, 9, 500)] == [16, 32, 64, 64]
