"""Renamed options: old names are read, and specs keep them."""

from __future__ import annotations

from typing import Any

import pytest

from bench import registry, renamed
from bench.boards.tables import read_options
from bench.config import configure, plain
from bench.errors import BadOption

RENAMED = [
    (name, variant, now, before)
    for name in registry.entries("method")
    for variant in registry.variants("method", name)
    for now, before in registry.describe("method", name, variant).recorded_as.items()
]


@pytest.mark.parametrize(("name", "variant", "now", "before"), RENAMED)
def test_renamed_option_exists(name: str, variant: str, now: str, before: str) -> None:
    assert renamed.RENAMED[before] == now
    known = {option.name: option for option in registry.describe("method", name, variant).options}
    option, _, value = now.partition("=")
    assert option in known and (before not in known) and (not value or value in known[option].choices)


def test_every_old_name_belongs_to_a_plugin() -> None:
    assert {before for *_, before in RENAMED} == set(renamed.RENAMED)


@pytest.mark.parametrize(
    ("name", "old", "new", "recorded"),
    [
        ("dpsd", {"questions": "96"}, {"queries": "96"}, {"questions": 96}),
        ("p3gm", {"mean": "paid"}, {"mean": "noisy"}, {"mean": "paid"}),
    ],
)
def test_old_name_is_read_with_a_notice(
    name: str, old: dict[str, str], new: dict[str, str], recorded: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    renamed._notify.cache_clear()
    cls = registry.load("method", name, "working")
    by_old = configure(cls, "smoke", old, "method")
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert by_old == configure(cls, "smoke", new, "method") and recorded.items() <= plain(by_old).items()
    assert not capsys.readouterr().err


def test_both_names_of_an_option_are_refused() -> None:
    with pytest.raises(BadOption):
        configure(registry.load("method", "dpsd", "working"), "smoke", {"questions": "9", "queries": "9"}, "method")


def test_boards_show_the_present_names() -> None:
    shown = read_options('{"method": {"questions": 3, "mean": "paid"}}')["method"]
    assert shown == {"queries": 3, "mean": "noisy"}
