"""What a graded check is made of, as data; `framework.py` runs it, `claims.py` and `symptoms.py`
have the usual parts.

Exercise  =  what to run on each rank  +  claims  +  hints
Bundle    =  a few exercises of one short function each, checked together
Claim     =  a name, points, and a verdict on what was measured: None, or the Problem
Hint      =  the mistake that usually causes such a Problem, in a sentence
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from inspect import isfunction
from typing import Any

from lib.check.card import Told
from lib.ledger.read import Ledger

# The adversarial cases. Each exercise meets each, or says in `leaves_out` why not; `python -m
# lib.check` prints which.
ADVERSARIAL = {
    "precise": "values that no narrower type holds: float32 on the wire of a float64 tensor fails",
    "under way": "two calls under way at once, with different groups and shapes",
    "again": "a second call, and calls in another order; what the first returned is looked at "
    "again",
    "empty rank": "a rank that has nothing: n = 0, no tokens, no gradients",
    "alone": "N = 1",
    "generators": "iterators where the notebook gives iterators",
    "returned": "what is returned: of which type, new or the caller's",
    "given used": "the function given as an argument is the one that sends",
    "memory": "what is alive inside the call, not only after it",
    "attributes": "attributes that later cells read",
}
ALWAYS = "an answer that never returns, exits or interrupts is judged in every exercise"


class CheckFailed(AssertionError):
    """The answer is not right yet. The message is the first claim that failed; the details were
    printed above it."""

    shown = False  # on a card, which the red box need not repeat

    def _render_traceback_(self):  # in a notebook: one line instead of the frames of lib
        return ["CheckFailed: see above" if self.shown else f"CheckFailed: {self}"]


@dataclass
class Run:
    """The student's function on one world size: what each rank measured, and the ranks' logs."""

    world_size: int
    results: list[Any]
    ledger: Ledger | None


@dataclass
class Problem:
    """What is wrong, in words.

    kind: which sort; facts: what hints look at, never the words: numbers, ranks, flags (claims.py
        says which).
    trace: what tells one mistake from another more finely than the words: numbers, rounded, and
        names. See `fingerprints.py`. None: the words do.
    """

    kind: str
    text: str
    facts: dict = field(default_factory=dict)
    trace: Any = None

    def fact(self, name: str, default=None):
        return self.facts.get(name, default)


@dataclass(frozen=True)
class Claim:
    name: str
    points: int
    says: str  # over which cases, in a few words
    judge: Callable[[list[Run]], Problem | None]


@dataclass(frozen=True)
class Hint:
    name: str  # the mistake, in a word or two; tests name it
    fits: Callable[[Problem], bool]
    text: str

    def saying(self, text: str) -> "Hint":
        """The same mistake, in the words of one exercise."""
        return replace(self, text=text)

    def also(self, fits: Callable[[Problem], bool]) -> "Hint":
        """The same mistake, which one exercise sees by other facts as well."""
        return replace(self, fits=lambda p: self.fits(p) or fits(p))


@dataclass(frozen=True)
class Exercise:
    """One graded exercise.

    measure: measure(student's function) -> what was seen (plain data and tensors). It runs on every
        rank, and puts `ledger.mark(label)` before and `ledger.mark("")` after each call of the
        student's function.
    worlds: the numbers of ranks it runs on; () for a function that needs no ranks: `measure` runs
        here, as world 0.
    may_call: the ops of torch ("send") and the functions of lib ("p2p.send_recv") that an answer
        may be built from.
    reference: lib's function of the same name and signature, for `use`.
    before: makes what the measure needs and no answer is part of, such as recorded runs, before the
        answer's time begins.
    bonus: its points come on top of the lab's 100 (the notebook tags the check's cell "bonus").
    leaves_out: {name in ADVERSARIAL: why it does not apply}; left_out.py has the usual reasons.
        That a function has no attributes need not be said.
    """

    name: str
    measure: Callable
    worlds: tuple[int, ...]
    claims: tuple[Claim, ...]
    hints: tuple[Hint, ...]
    may_call: tuple[str, ...] = ()
    reference: Callable | None = None
    before: Callable[[], object] | None = None
    bonus: bool = False
    leaves_out: dict[str, str] = field(default_factory=dict)

    def __post_init__(self):
        if unknown := set(self.leaves_out) - set(ADVERSARIAL):
            raise ValueError(
                f"{self.name} leaves out {sorted(unknown)}; there are {', '.join(ADVERSARIAL)}"
            )
        if isfunction(self.reference):
            object.__setattr__(
                self, "leaves_out", {"attributes": "a function has none"} | self.leaves_out
            )

    @property
    def points(self) -> int:
        return sum(claim.points for claim in self.claims)

    @property
    def parts(self) -> tuple["Exercise", ...]:
        return (self,)


@dataclass(frozen=True)
class Bundle:
    """Several short functions that belong together. Each is judged by itself: one that fails costs
    only its own points.

    parts: in the order in which the check takes the functions; a part has the name of its function.
    """

    name: str
    parts: tuple[Exercise, ...]
    bonus: bool = False

    @property
    def points(self) -> int:
        return sum(part.points for part in self.parts)

    @property
    def hints(self) -> tuple[Hint, ...]:
        return tuple(hint for part in self.parts for hint in part.hints)


@dataclass
class Outcome:
    """How a check ended. hint: the name of the hint that was given, or None; parts: a
    Bundle's, one by one; told: the same as the lines, part by part, for the card."""

    points: int
    max_points: int
    lines: list[str]
    message: str
    hint: str | None = None
    parts: list["Outcome"] = field(default_factory=list)
    problem: Problem | None = None
    told: list[Told] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.points == self.max_points
