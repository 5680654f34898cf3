"""Mistakes that can be made with every schedule, made of a right one: {answer: name of its
hint}."""

from itertools import chain


def flat(lists):
    return [*chain.from_iterable(lists)]


def after(name, right, change):
    """change(schedule, p) of what `right` gives."""
    answer = lambda *sizes: change(right(*sizes), sizes[0])
    answer.__name__ = name
    return answer


def each_action(change):
    return lambda schedule, p: [[change(action) for action in actions] for actions in schedule]


def shifted(**by):
    return each_action(
        lambda a: a._replace(**{name: getattr(a, name) + step for name, step in by.items()})
    )


LATEST = []
CHANGES = {
    "returns_nothing": (lambda schedule, p: None, "nothing returned"),
    "a_dictionary": (lambda schedule, p: dict(enumerate(schedule)), "not a list per rank"),
    "one_flat_list": (lambda schedule, p: flat(schedule), "not a list per rank"),
    "a_rank_too_few": (lambda schedule, p: schedule[:-1], "not a list per rank"),
    "in_writing": (each_action(str), "not actions"),
    "plain_tuples": (each_action(tuple), "not actions"),
    "fields_in_another_order": (
        each_action(lambda a: type(a)(a.kind, a.stage, a.microbatch)), "not actions"),
    "actions_of_its_own": (each_action(lambda a: type("Action", (), a._asdict())()), "not actions"),
    "everything_on_every_rank": (
        lambda schedule, p: [flat(schedule)] * p, "one list for all ranks"),
    "microbatches_from_one": (shifted(microbatch=1), "past the last"),
    "one_that_is_not_there": (
        lambda schedule, p: [
            actions + [actions[-1]._replace(microbatch=99)] for actions in schedule],
        "past the last"),
    "last_done_twice": (
        lambda schedule, p: [actions + actions[-1:] for actions in schedule], "twice"),
    "without_backward": (
        lambda schedule, p: [[a for a in actions if a.kind == "F"] for actions in schedule],
        "no backward"),
    "back_to_front": (
        lambda schedule, p: [actions[::-1] for actions in schedule], "backward first"),
    "generators": (
        lambda schedule, p: [(a for a in actions) for actions in schedule], "an iterator"),
    "a_generator_of_lists": (lambda schedule, p: (actions for actions in schedule), "an iterator"),
    "one_list_for_all_calls": (
        lambda schedule, p: LATEST.__setitem__(slice(None), schedule) or LATEST,
        "used again by a later call"),
    "nothing_to_schedule_alone": (
        lambda schedule, p: schedule if p > 1 else [[]], "right for several ranks only"),
}  # fmt: skip


def slips(right):
    """right: a function of (p, m) or (p, m, v)."""
    calls, appended = [], []

    def lists_that_grow(*sizes):
        """Each call appends to the lists of the one before, as in a default argument."""
        appended.extend([] for _ in range(sizes[0] - len(appended)))
        for mine, actions in zip(appended, right(*sizes), strict=False):
            mine.extend(actions)
        return [[*actions] for actions in appended[: sizes[0]]]

    def right_only_once(*sizes):
        calls.append(sizes)
        return right(*sizes) if calls.count(sizes) == 1 else [[]] * sizes[0]

    def exits(*sizes):
        raise SystemExit("done")

    def not_written(*sizes):
        raise NotImplementedError

    made = {after(name, right, change): hint for name, (change, hint) in CHANGES.items()}
    return made | {
        right_only_once: "used again by a later call",
        lists_that_grow: "used again by a later call",
        exits: "exits",
        not_written: "not written",
    }


def in_halves(right):
    """Every B as I and W, one after the other: right numbers, in another schedule's words."""
    split = lambda a: [a._replace(kind=kind) for kind in ("IW" if a.kind == "B" else a.kind)]
    return after(
        "with_i_and_w", right, lambda lists, p: [flat(map(split, actions)) for actions in lists]
    )
