"""What goes when: the rules by themselves."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from verniermq.kernel import Duration
from verniermq.plugins.retention.rules import Config, judge, percent_used


@pytest.mark.parametrize(
    ("percent", "hour", "asked", "delete_expired", "forced", "refuse"),
    [
        (50, 3, False, False, False, False),
        (50, 4, False, True, False, False),
        (50, 3, True, True, False, False),
        (74, 3, False, False, False, False),
        (75, 3, False, True, False, False),
        (84, 4, False, True, False, False),
        (85, 3, False, True, True, False),
        (89, 3, False, True, True, False),
        (90, 3, False, True, True, True),
        (100, 4, True, True, True, True),
    ],
)
def test_the_marks_of_the_disk_and_the_hour_decide(
    percent: int, hour: int, asked: bool, delete_expired: bool, forced: bool, refuse: bool
) -> None:
    verdict = judge(Config(), hour=hour, percent=percent, asked=asked, refusing=False)

    assert (verdict.delete_expired, verdict.forced, verdict.refuse) == (delete_expired, forced, refuse)


@pytest.mark.parametrize(("percent", "refuse"), [(90, True), (86, True), (85, True), (84, False)])
def test_who_refuses_goes_on_refusing_until_the_lower_mark(percent: int, refuse: bool) -> None:
    assert judge(Config(), hour=0, percent=percent, asked=False, refusing=True).refuse == refuse


def test_young_files_stay_if_force_is_off() -> None:
    verdict = judge(Config(force=False), hour=0, percent=95, asked=False, refusing=False)

    assert (verdict.delete_expired, verdict.forced, verdict.refuse) == (True, False, True)


@pytest.mark.parametrize(
    ("age", "forced", "goes"),
    [
        (9, True, False),  # seconds after they were acknowledged
        (3599, True, False),
        (3600, True, True),
        (3600, False, False),
        (72 * 3600 - 1, False, False),
        (72 * 3600, False, True),
        (72 * 3600, True, True),
    ],
)
def test_a_file_younger_than_the_floor_stays_whatever_the_disk_says(age: float, forced: bool, goes: bool) -> None:
    assert Config().may_go(age, forced=forced) == goes


def test_a_floor_above_the_age_of_expiry_keeps_nothing_longer() -> None:
    config = Config(max_age=Duration(60), min_age=Duration(3600))

    assert [config.may_go(age, forced=False) for age in (59, 60)] == [False, True]


def test_several_hours_are_joined_by_semicolons() -> None:
    assert Config(delete_when="04;16;23").hours == {4, 16, 23}
    for wrong in ("", "24", "4,16", "noon"):
        with pytest.raises(ValueError, match="hours from 00 to 23"):
            Config(delete_when=wrong)


def test_the_disk_is_as_full_as_df_says(tmp_path: Path) -> None:
    disk = shutil.disk_usage(tmp_path)

    percent = percent_used(tmp_path)

    assert abs(percent - 100 * disk.used / (disk.used + disk.free)) <= 2
