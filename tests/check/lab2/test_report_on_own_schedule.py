"""A schedule that one check accepts is not held against the student in the next."""

import pytest

from lib import check
from lib.check import framework
from lib.pipeline import schedules
from lib.pipeline.actions import Action
from lib.pipeline.balance import balance
from lib.pipeline.simulate import simulate


def shorter(p, m, v=1):
    """Interleaved 1F1B whose warmup is shorter: the same bubble where all stages are alike."""
    if v == 1:
        return schedules.one_f_one_b(p, m)
    lists = []
    for rank in range(p):
        forwards = [
            (chunk * p + rank, "F", mb)
            for first in range(0, m, p) for chunk in range(v) for mb in range(first, first + p)
        ]  # fmt: skip
        backwards = [
            (chunk * p + rank, "B", mb)
            for first in range(0, m, p)
            for chunk in reversed(range(v)) for mb in range(first, first + p)
        ]  # fmt: skip
        warmup = min(len(forwards), (v - 1) * p + p - 1 - rank)
        actions = forwards[:warmup]
        for pair in zip(forwards[warmup:], backwards, strict=False):
            actions += pair
        lists.append([Action(*a) for a in actions + backwards[len(forwards) - warmup :]])
    return lists


def by(schedule):
    def pipeline_report(costs, p, v, m, stage_gb, rank_mfu):
        stages = balance(costs, p * v)
        forward = [sum(costs[i] for i in stage) for stage in stages]
        backward = [2 * time for time in forward]
        step = simulate(schedule(p, m, v), {"F": forward, "B": backward})
        return {
            "pace": 3 * max(sum(forward[rank::p]) for rank in range(p)),
            "bubble": step.bubble,
            "memory": stage_gb * max(step.peak_kept),
            "MFU": rank_mfu * (1 - step.bubble),
        }

    return pipeline_report


def test_the_schedule_that_has_passed_is_the_one_that_is_asked_for(monkeypatch, capsys):
    assert simulate(shorter(4, 8, 4)).bubble == simulate(schedules.interleaved(4, 8, 4)).bubble
    with pytest.raises(check.CheckFailed):  # a schedule of which no check knows anything
        check.pipeline_report(by(shorter))
    assert "bubble: expected" in capsys.readouterr().out
    monkeypatch.setitem(framework._passed, "interleaved", shorter)
    check.pipeline_report(by(shorter))
    assert "4 of 4 points" in capsys.readouterr().out
    check.pipeline_report(by(schedules.interleaved))  # lib's is right, whatever the student's is
    assert "4 of 4 points" in capsys.readouterr().out
