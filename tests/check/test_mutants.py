"""Mutants are small, differ from their reference, and tell whether a check sees them."""

import mutants

from lib.check.exercise import Claim, Exercise, Problem


def scaled(values, factor=2):
    """The values times the factor, rounded down."""
    if not values:
        raise ValueError(f"there are {len(values)} values, expected 1 or more")
    found = []
    for value in reversed(values):
        found.append(value * factor // 3)
    return list(reversed(found))


def judged_by(cases):
    right = Claim(
        "scaled", 1, "", lambda runs: None if runs[0].results[0] else Problem("value", "not scaled")
    )
    measure = lambda fn: all(fn(list(case)) == scaled(list(case)) for case in cases)
    return Exercise("scaled", measure, (), (right,), (), reference=scaled)


def test_every_mutant_is_another_text_and_names_its_change():
    found = mutants.mutants(scaled)
    assert len({mutant.text for mutant in found}) == len(found)
    says = {(mutant.kind, mutant.change) for mutant in found}
    assert {
        ("constant", "2 -> 3"),
        ("operator", "value * factor // 3 -> value * factor % 3"),
        ("operator", "value * factor -> value / factor"),
        ("line", "left out: found.append(value * factor // 3)"),
    } <= says
    assert not any("1 or more" in mutant.change for mutant in found)  # an error's words
    assert any(mutant.kind == "order" and "reversed" in mutant.change for mutant in found)


def test_a_blind_check_lets_mutants_pass_and_a_good_one_only_what_is_as_right():
    blind, _ = mutants.survivors(judged_by([[0, 0]]))
    good, number = mutants.survivors(judged_by([[3, 1, 8], [1], [2, 5]]))
    assert len(blind) > 5 * len(good) and number > 8
    changes = {mutant.change for mutant in good}
    assert all("value" not in change for change in changes), changes


def test_a_mutant_that_cannot_be_made_is_none_that_passes():
    broken = mutants.Mutant("line", 1, "no function", "x = 1")
    assert mutants.survivors(judged_by([[1]]), of=[broken]) == ([], 1)


class Sum:
    """Has a method that the answer writes, and one that is given."""

    def add(self, value):
        self.total = self.given() + value

    def given(self):
        return 2 * 3


def test_only_the_methods_that_an_answer_writes_are_changed():
    changes = {mutant.change for mutant in mutants.mutants(Sum, ("add",))}
    assert "self.given() + value -> self.given() - value" in changes
    assert not any("*" in change or "3" in change for change in changes)
    assert any("2 * 3" in mutant.change for mutant in mutants.mutants(Sum))
