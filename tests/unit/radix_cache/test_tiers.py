"""Cumulative counts by tier, and one number for all three."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radix_cache.tiers import Tier, TierBlocks, pack_tiers, tier_of, unpack_tiers

counts = st.lists(st.integers(0, 512), min_size=3, max_size=3).map(lambda some: TierBlocks(*sorted(some)))


@given(counts)
def test_what_was_packed_is_unpacked_and_fits_into_32_bits(held):
    assert unpack_tiers(pack_tiers(held)) == held
    assert pack_tiers(held) < 2**32


@given(st.integers(0, 512))
def test_a_path_on_the_gpu_is_the_plain_count(blocks):
    assert pack_tiers(TierBlocks(blocks, blocks, blocks)) == blocks


@given(counts, st.integers(0, 512), st.sampled_from(Tier))
def test_counts_stay_cumulative_whatever_is_stored_or_removed(held, blocks, tier):
    for after in (held.at_least(tier, blocks), held.at_most(tier, blocks), held.without_first(blocks)):
        assert after.gpu <= after.host <= after.all
    assert held.at_least(tier, blocks).within(tier) >= blocks >= held.at_most(tier, blocks).within(tier)


@pytest.mark.parametrize(
    ("medium", "tier"),
    [
        ("GPU", Tier.GPU),
        ("gpu", Tier.GPU),
        ("CPU", Tier.HOST),
        ("CPU_PINNED", Tier.HOST),
        ("DISK", Tier.DISK),
        ("STORAGE", Tier.DISK),
        ("EXTERNAL", Tier.DISK),
        ("something new", Tier.DISK),
    ],
)
def test_a_medium_is_of_the_tier_that_can_be_counted_on(medium, tier):
    assert tier_of(medium) is tier
