"""The data classes of a graded check. `framework.py` runs a check, and `claims.py` and
`symptoms.py` have the parts that exercises share.

    Exercise  =  what to run on each rank  +  claims  +  hints
    Bundle    =  a few exercises of one short function each, checked together
    Claim     =  a name, points, and a judge of what was measured, which returns None or a Problem
    Hint      =  a sentence about a Problem: its usual cause, or what to look at
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import isfunction
from typing import Any

from lib.check.card import Told
from lib.ledger.read import Ledger

# The adversarial cases. Each exercise is tested in each of them, or says in `leaves_out` why it is
# not. `python -m lib.check` prints the table.
ADVERSARIAL = {
    "precise": "values that no narrower type holds: float32 on the wire of a float64 tensor fails",
    "under way": "two calls in flight at once, with different groups and shapes",
    "again": "a second call, and calls in another order; then the first result is compared again",
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
    """The answer is not right yet. The message names the first claim that failed, and the details
    are shown above it. Or the check was not given a function, and the message says how to call it.
    """

    shown = False  # True if a card has shown the message, so that the red box need not repeat it

    def _render_traceback_(self):  # in a notebook: one line instead of the frames of lib
        return ["CheckFailed: see above" if self.shown else f"CheckFailed: {self}"]


@dataclass
class Run:
    """One run of the student's function, on one number of ranks: what each rank measured, and the
    ranks' logs."""

    world_size: int
    results: list[Any]
    ledger: Ledger | None


@dataclass
class Problem:
    """What is wrong, in words and as data.

    kind: what sort of failure it is.
    facts: numbers, ranks and flags, which the hints look at. No hint reads the text.
    trace: rounded numbers and names, which distinguish mistakes more finely than the text does
        (see `fingerprints.py`). If it is None, the text serves as the trace.
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
    says: str  # the cases that it covers, in a few words
    judge: Callable[[list[Run]], Problem | None]


@dataclass(frozen=True)
class Hint:
    name: str  # the mistake in a few words, by which tests refer to it
    fits: Callable[[Problem], bool]
    text: str
    certain: bool = False  # if its condition fits, there is no doubt about the cause


@dataclass(frozen=True)
class Exercise:
    """One graded exercise.

    measure: measure(student's function) -> what was observed (plain data and tensors). It runs on
        every rank, and calls `ledger.mark(label)` before each call of the student's function and
        `ledger.mark("")` after it.
    worlds: the numbers of ranks it runs on; () for a function that needs no ranks, whose `measure`
        runs in the kernel. Its Run has world size 0 and no ledger.
    may_call: the ops of torch ("send") and the functions of lib ("p2p.send_recv") that an answer
        may be built from.
    reference: lib's function of the same name and signature, for `use`.
    before: prepares what the measure needs but no answer affects, such as recorded runs. It is
        called before the time limit of the answer begins, and only if `worlds` is ().
    bonus: its points are added to the lab's 100 (the notebook tags the check's cell "bonus").
    leaves_out: {name in ADVERSARIAL: why it does not apply}. left_out.py has the usual reasons. If
        the reference is a function, "attributes" is added automatically.
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
    """Several short functions that belong together. Each is judged by itself, so one that fails
    costs only its own points.

    parts: the exercises, in the order in which the check takes the functions. Each has the name of
        its function.
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
    """How a check ended. hint: the name of the hint that was given, None if there was none, or "not
    written" if the function still raises NotImplementedError. parts: the Outcomes of a Bundle's
    parts. told: the same verdict as `lines`, split into the items that the card shows."""

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
