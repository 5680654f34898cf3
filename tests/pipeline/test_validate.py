"""What an action needs; and a broken schedule is refused, with the action at fault."""

import pytest

from lib.pipeline import (
    Action,
    ScheduleError,
    dependencies_of,
    gpipe,
    grid,
    one_f_one_b,
    parse,
    source,
    target,
    validate,
    zb_h1,
)


def test_an_action_is_written_and_read():
    assert str(Action(2, "F", 0)) == "2F0"
    assert parse("12W345") == Action(12, "W", 345)
    for text in ("", "F0", "2X0", "2F", "2F0 ", "-1F0"):
        with pytest.raises(ValueError, match="is no action: write stage"):
            parse(text)


def test_what_an_action_needs_and_who_needs_it():
    names = lambda text, n_stages: [str(need) for need in dependencies_of(parse(text), n_stages)]
    assert names("0F1", 3) == []
    assert names("1F1", 3) == ["0F1"]
    assert names("1B1", 3) == ["1F1", "2B1"]
    assert names("2B1", 3) == ["2F1"]
    assert names("1I1", 3) == ["1F1", "2I1"]
    assert names("1W1", 3) == ["1I1"]


def test_source_and_target_are_each_others_reverse():
    for action in (Action(stage, kind, 7) for stage in range(4) for kind in "FBIW"):
        for one, other in ((source, target), (target, source)):
            assert one(action, 4) is None or other(one(action, 4), 4) == action
    assert [target(parse(text), 4) for text in ("3F0", "0B0", "0I0", "2W0")] == [None] * 4
    assert [source(parse(text), 4) for text in ("0F0", "3B0", "3I0", "2W0")] == [None] * 4


def lists(*rows):
    return [[parse(text) for text in row.split()] for row in rows]


@pytest.mark.parametrize(
    ("schedule", "m", "kind", "at_fault", "message"),
    [
        (lists("0F0 0B0", "1F0"), 1, "missing", "1B0", "rank 1 never runs 1B0"),
        (lists("0F0 0B0", "1F0 1B0"), 2, "missing", "0F1", "rank 0 never runs 0F1"),
        (lists("0F0 0I0 0W0", "1F0 1I0"), 1, "missing", "1W0", "rank 1 never runs 1W0"),
        (lists("0F0 0F0 0B0", "1F0 1B0"), 1, "twice", "0F0", "rank 0 has 0F0 2 times"),
        (
            lists("0F0 0B0 0I0 0W0", "1F0 1B0"),
            1,
            "mixed",
            "0B0",
            "rank 0 has 0B0, a full backward, and a half",
        ),
        (lists("0F0 0B0", "1F0 1I0"), 1, "missing", "1W0", "rank 1 never runs 1W0"),
        (
            lists("0B0 0F0", "1F0 1B0"),
            1,
            "order",
            "0B0",
            "rank 0 has 0B0 before 0F0, which it needs",
        ),
        (lists("0F0 0W0 0I0"), 1, "order", "0W0", "rank 0 has 0W0 before 0I0, which it needs"),
        (
            lists("0F0 1B0", "1F0 0B0"),
            1,
            "wrong rank",
            "1B0",
            "rank 0 has 1B0, but stage 1 is on rank 1",
        ),
        (
            lists("0F0 0B0", "1F0 1B0 1F1"),
            1,
            "unknown",
            "1F1",
            "rank 1 has 1F1: .* micro-batches 0 ... 0$",
        ),
        (
            lists("0F0 0B0 2F0", "1F0 1B0"),
            1,
            "unknown",
            "2F0",
            "rank 0 has 2F0: .* stages 0 ... 1,",
        ),
        ([[Action(0, "X", 0)]], 1, "unknown", "0X0", "rank 0 has 0X0: .* kinds F B I W,"),
    ],
)
def test_a_broken_schedule_is_refused_by_name(schedule, m, kind, at_fault, message):
    with pytest.raises(ScheduleError, match=message) as caught:
        validate(schedule, m)
    assert (caught.value.kind, str(caught.value.actions[0])) == (kind, at_fault)


def test_a_deadlock_of_two_is_shown_as_a_circle():
    with pytest.raises(ScheduleError) as caught:
        validate(lists("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"), 2)
    assert str(caught.value) == (
        "deadlock:\n"
        "  rank 0 waits at 0B0 for 1B0, which rank 1 runs after 1F1\n"
        "  rank 1 waits at 1F1 for 0F1, which rank 0 runs after 0B0"
    )
    assert caught.value.kind == "deadlock"
    assert [str(a) for a in caught.value.actions] == ["0B0", "1F1"]


def test_who_waits_for_a_circle_is_no_part_of_it():
    """Ranks 1 and 2 wait for each other; rank 0 waits for rank 1, and is not to blame."""
    with pytest.raises(ScheduleError, match="deadlock") as caught:
        validate(lists("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1", "2F0 2F1 2B0 2B1"), 2)
    assert [str(a) for a in caught.value.actions] == ["1B0", "2F1"]


def test_a_need_that_no_list_holds_is_named_when_a_schedule_is_drawn():
    with pytest.raises(
        ScheduleError, match="rank 0 waits at 0B0 for 1B0, which is not in rank 1's list"
    ):
        grid(lists("0F0 0B0", "1F0"))


@pytest.mark.parametrize(("p", "m"), [(2, 3), (3, 4), (4, 4)])
def test_every_schedule_less_any_one_action_or_with_one_twice_is_refused(p, m):
    for schedule in (gpipe(p, m), one_f_one_b(p, m), zb_h1(p, m)):
        for rank, actions in enumerate(schedule):
            for i, action in enumerate(actions):
                for kind, changed in (
                    ("missing", actions[:i] + actions[i + 1 :]),
                    ("twice", [*actions, action]),
                ):
                    with pytest.raises(ScheduleError) as caught:
                        validate([*schedule[:rank], changed, *schedule[rank + 1 :]], m)
                    assert (caught.value.kind, caught.value.actions[0]) == (kind, action)
