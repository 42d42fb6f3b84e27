"""A declared setting takes what its type and bounds allow, and its owner's error names the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import pytest

from playhead.errors import ConfigError
from playhead.settings import Setting, Switch, check_settings, declare, settings_of


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


def doubled(name: str, value: object) -> object:
    if not isinstance(value, int):
        raise ConfigError(f"{name}: not a number")
    return 2 * value


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    count: int = declare(1, Setting(help="a count", low=1, high=9, group="sizes", aliases=("-c",)))
    share: float | None = declare(None, Setting(help="a share", low=0, high=1, above=True))
    anything: int = declare(0, Setting(help="any integer"))
    is_on: bool = declare(True, Setting(help="a switch", switches=(Switch(flags=("--off",), sets=False, help="off"),)))
    colour: Colour = declare(Colour.RED, Setting(help="a colour"))
    word: str = declare("a", Setting(help="a word", choices=("a", "b")))
    names: Sequence[str] = declare((), Setting(help="names", take=lambda name, value: tuple(value)))
    twice: object = declare(1, Setting(help="is doubled", take=doubled))
    plain: int = 3

    def __post_init__(self) -> None:
        check_settings(self, OWNER, lambda name, value, wanted: ConfigError(f"{name}: {value!r}; wanted {wanted}"))


OWNER = settings_of(Owner)


def test_settings_are_the_declared_fields_with_their_types():
    assert [one.name for one in OWNER][-2:] == ["names", "twice"]
    kinds = {one.name: (one.kind, one.is_optional, one.is_list) for one in OWNER}
    assert kinds["count"] == (int, False, False)
    assert kinds["share"] == (float, True, False)
    assert kinds["names"] == (str, False, True)
    assert OWNER[0].flag == "--count"


def test_allowed_values_are_kept_and_words_become_members():
    made = Owner(count=9, share=1, colour="blue", word="b", names=["x"], twice=4)
    assert (made.count, made.share, made.word, made.names, made.twice) == (9, 1, "b", ("x",), 8)
    assert made.colour is Colour.BLUE


@pytest.mark.parametrize(
    ("wrong", "wanted"),
    [
        ({"count": 0}, "an integer from 1 to 9"),
        ({"count": 10}, "an integer from 1 to 9"),
        ({"count": True}, "an integer from 1 to 9"),
        ({"count": 2.0}, "an integer from 1 to 9"),
        ({"count": None}, "an integer from 1 to 9"),
        ({"share": 0}, "a finite number above 0 and at most 1"),
        ({"share": float("nan")}, "a finite number above 0"),
        ({"anything": 2**63}, "a 64-bit integer from -9223372036854775808"),
        ({"is_on": 1}, "True or False"),
        ({"colour": "green"}, "one of red, blue"),
        ({"word": ["a"]}, "one of a, b"),
        ({"twice": "2"}, "not a number"),
    ],
)
def test_what_a_setting_does_not_allow_is_refused_by_name(wrong, wanted):
    with pytest.raises(ConfigError, match=f"^{next(iter(wrong))}: .*{wanted}"):
        Owner(**wrong)
