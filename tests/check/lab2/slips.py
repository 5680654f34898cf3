"""Mistakes that can be made with every schedule, made of a right one: {answer: name of its hint}."""


def each_action(schedule, change):
    return [[change(action) for action in actions] for actions in schedule]


def slips(right):
    """right: a function of (p, m) or (p, m, v)."""

    def returns_nothing(*sizes):
        right(*sizes)

    def a_dictionary(*sizes):
        return dict(enumerate(right(*sizes)))

    def one_flat_list(*sizes):
        return [action for actions in right(*sizes) for action in actions]

    def a_rank_too_few(*sizes):
        return right(*sizes)[:-1]

    def in_writing(*sizes):
        return each_action(right(*sizes), str)

    def plain_tuples(*sizes):
        return each_action(right(*sizes), tuple)

    def fields_in_another_order(*sizes):
        return each_action(right(*sizes), lambda action: type(action)(action.kind, action.stage, action.microbatch))

    def everything_on_every_rank(*sizes):
        schedule = right(*sizes)
        return [[action for actions in schedule for action in actions]] * len(schedule)

    def microbatches_from_one(*sizes):
        return each_action(right(*sizes), lambda action: action._replace(microbatch=action.microbatch + 1))

    def stages_from_one(*sizes):
        return each_action(right(*sizes), lambda action: action._replace(stage=action.stage + 1))

    def last_done_twice(*sizes):
        return [actions + actions[-1:] for actions in right(*sizes)]

    def without_backward(*sizes):
        return [[action for action in actions if action.kind == "F"] for actions in right(*sizes)]

    def back_to_front(*sizes):
        return [actions[::-1] for actions in right(*sizes)]

    def generators(*sizes):
        return [(action for action in actions) for actions in right(*sizes)]

    def a_generator_of_lists(*sizes):
        yield from right(*sizes)

    lists = []

    def one_list_for_all_calls(*sizes):
        lists[:] = right(*sizes)
        return lists

    def nothing_to_schedule_alone(*sizes):
        return right(*sizes) if sizes[0] > 1 else [[]]

    def actions_of_its_own(*sizes):
        return each_action(right(*sizes), lambda action: type("Action", (), action._asdict())())

    def exits(*sizes):
        raise SystemExit("done")

    def not_written(*sizes):
        raise NotImplementedError

    return {
        returns_nothing: "nothing returned",
        a_dictionary: "not a list per rank",
        one_flat_list: "not a list per rank",
        a_rank_too_few: "not a list per rank",
        in_writing: "not actions",
        plain_tuples: "not actions",
        fields_in_another_order: "not actions",
        everything_on_every_rank: "another rank's stage",
        microbatches_from_one: "counted from one",
        last_done_twice: "twice",
        without_backward: "no backward",
        back_to_front: "backward first",
        generators: "an iterator",
        a_generator_of_lists: "an iterator",
        one_list_for_all_calls: "one buffer for all calls",
        nothing_to_schedule_alone: "right for several ranks only",
        actions_of_its_own: "not actions",
        exits: "exits",
        not_written: "not written",
    }


def in_halves(right):
    """Every B as I and W, one after the other: right numbers, in another schedule's words."""

    def with_i_and_w(*sizes):
        split = lambda a: [a._replace(kind=kind) for kind in ("IW" if a.kind == "B" else a.kind)]
        return [[half for action in actions for half in split(action)] for actions in right(*sizes)]

    return with_i_and_w
