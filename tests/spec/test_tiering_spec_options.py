"""Options of the tiers below the host: every mistake is one clear line."""

from __future__ import annotations

import pytest

from kvoffload.errors import ConfigError
from kvoffload.spec.factory import OffloadingSpecFactory

BASE = {"cpu_bytes_to_use": "1GiB", "spec_name": "TieringOffloadingSpec"}


def parse(*tiers: object, **more: object) -> object:
    options, _ = OffloadingSpecFactory.parse_options({**BASE, "secondary_tiers": list(tiers), **more})
    return options.secondary_tiers


def test_options_of_the_lane_and_of_the_tier_stand_side_by_side() -> None:
    (tier,) = parse(
        {"type": "fs", "root_dir": "/kv", "max_bytes": "10GiB", "deadline_s": 3, "batch_bytes": "8MiB"}
    )
    assert (tier.own.root_dir, tier.own.max_bytes) == ("/kv", 10 * 1024**3)
    assert (tier.lane.deadline_s, tier.lane.batch_bytes) == (3.0, 8 * 1024**2)


@pytest.mark.parametrize(
    ("tier", "expected"),
    [
        ({"type": "floppy"}, ["secondary_tiers[0]", "'floppy'", "fs"]),
        ({"root_dir": "/kv"}, ["'type'", "fs"]),
        ("fs", ["mapping", "'type'"]),
        ({"type": "fs"}, ["root_dir must be given"]),
        ({"type": "fs", "root_dir": "/kv", "max_byte": 3}, ["'max_byte'", "did you mean 'max_bytes'"]),
        ({"type": "fs", "root_dir": "/kv", "max_bytes": "3 parsecs"}, ["max_bytes", "3 parsecs", "GiB"]),
        ({"type": "fs", "root_dir": "/kv", "durability": "eternal"}, ["durability", "'none'", "'full'"]),
    ],
)
def test_a_wrong_tier_is_an_error_that_says_where_what_and_what_is_valid(
    tier: object, expected: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(tier)
    text = str(caught.value)
    assert "\n" not in text
    assert all(part in text for part in expected), text


def test_tiers_that_are_no_list_are_an_error() -> None:
    with pytest.raises(ConfigError, match="must be a list"):
        OffloadingSpecFactory.parse_options({**BASE, "secondary_tiers": {"type": "fs"}})


def test_an_unknown_load_policy_lists_the_valid_ones() -> None:
    with pytest.raises(ConfigError, match="always, never, auto"):
        parse(load_policy="sometimes")
