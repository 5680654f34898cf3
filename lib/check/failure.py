"""Facts about a failed run, as seen from the case in which it failed. Hints look at these facts.

A check runs many cases in one launch, and all ranks finish a case before the next one begins:

    rank 0   mark("2 ranks") [ fn ] mark("")  wait | mark("3 ranks") [ fn ......
    rank 1   mark("2 ranks") [ fn ] mark("")  wait | mark("3 ranks") [ fn ] mark("")  wait ...
    rank 3                                    wait |                                  wait ...

If rank 0 hangs in the case "3 ranks", the launcher reports all of these ranks as waiting. From the
student's point of view, however, rank 1 has returned, and rank 3 takes no part in the case.
"""

import re
from dataclasses import dataclass, field
from types import SimpleNamespace

from lib.check.exercise import Problem
from lib.check.guard import is_students, raised
from lib.launch import RankError
from lib.launch.errors import from_failure
from lib.launch.watch import Failure
from lib.ledger import Ledger, audit
from lib.ledger.log import RETURNED, RUNNING

HANGS = ("deadlock", "no progress")
# prefix of the mark at which an exercise's part of a log begins; such a mark does not open a case
BEGINS = "exercise: "

# What torch and lib say when they refuse a call. Hints look at these names, and never at the text
# of an exception.
REFUSALS = {
    "outside the group": "the group has|not part of group|not in this group|Invalid "
    "(destination|source) rank",
    "to itself": "itself|same as the current process|Destination rank should not|Source rank "
    "should not",
    "view": r"view size is not compatible",
    "shape": "size of tensor|must match|shape|split_with_sizes|view size|expanded size|size "
    "mismatch",
    "dtype": r"dtype|scalar type|expected .* but found|data type",
    "in place": r"inplace operation|in-place operation",
    "read-only": r"can't set attribute",
    "no graph": r"does not require grad|element 0 of tensors",
    "None": r"NoneType",
    "graph freed": r"second time|already been freed",
    "not a gradient for each": r"number of gradients",
    "truth": r"Boolean value of Tensor",
    "integers": r"floating point|leaf variable",
}


# The barriers in which the given collectives agree on what all ranks do (wire.py). A student should
# see only the call, and not how far each rank has got in these exchanges.
OURS = re.compile(
    r"barrier #\d+ in [\w.]+"
    r"(, .*?)?(?:; ranks? [\d, and]+ ha(?:s|ve) not called it)?$",
    re.MULTILINE,
)


def _of_the_answer(text):
    return OURS.sub(lambda found: f"a collective that it was given{found[1] or ''}", text)


@dataclass(frozen=True)
class Failed:
    """What went wrong, in which case ("" if it was in none), and the global ranks of that case."""

    kind: str
    text: str
    case: str
    members: tuple[int, ...]
    ledger: Ledger | None  # what these ranks did in that case
    mismatch: str = ""  # what does not match between messages: "size", "dtype", ...
    waits_in: dict[int, str] = field(default_factory=dict)  # rank -> the op that it waits in
    # rank -> the ranks that it waits for
    awaited: dict[int, list[int]] = field(default_factory=dict)
    raised: str = ""  # the exception's type
    refusals: frozenset[str] = frozenset()  # keys of REFUSALS
    refused_op: str = ""  # "send" or "recv", if that is what was refused

    @property
    def hung(self) -> bool:
        return self.kind in HANGS

    def where(self, worlds, nproc: int) -> str:
        """The case and the number of ranks, in words. If all cases share one launch, the name of a
        case already says on which of its ranks it ran."""
        ranks = "1 rank" if nproc == 1 else f"{nproc} ranks"
        if self.case and (len(worlds) == 1 or self.case.startswith(ranks)):
            return self.case
        return ", ".join(filter(None, [ranks, self.case]))

    def all_wait_in(self, op: str) -> bool:
        """True if every rank of the case waits in this op."""
        return self.hung and all(self.waits_in.get(rank) == op for rank in self.members)

    def beyond_the_group(self) -> bool:
        """True if a rank named a rank that the group does not have, or communicated with a rank
        outside of the group."""
        outside = self.ledger is not None and any(
            e.peer not in self.members for e in self.ledger.entries if e.is_message
        )
        return "outside the group" in self.refusals or outside


def in_its_case(error: RankError) -> Failed:
    """Describe `error` for the first case that went wrong, which is the first one whose messages do
    not match or that a rank has not finished."""
    ledger = error.ledger
    inside = {
        rank: label for rank in range(ledger.world_size) if (label := _last_mark(ledger.of(rank)))
    }
    facts = _facts(error)
    for case in (label for label in ledger.marks if label and not label.startswith(BEGINS)):
        section = ledger.section(case)
        findings = [finding for finding in audit(section, ended=False) if finding.certain]
        if not findings and case not in inside.values():
            continue
        members = tuple(r for r in range(ledger.world_size) if _last_mark(ledger.of(r), case))
        facts["waits_in"] = {
            r: op for r, op in error.waits_in.items() if r in members and inside.get(r) == case
        }
        if error.kind == "mismatch" and findings:
            first = min(findings, key=lambda finding: finding.ranks)
            return Failed("mismatch", first.text, case, members, section, first.kind, **facts)
        hang = next((kind for kind in HANGS if str(error).startswith(kind)), None)
        if error.kind == "stopped":
            hang = error.kind
        if hang:
            text = _of_the_answer(_retold(hang, error, section, members, inside))
            return Failed(hang, text, case, members, section, **facts)
        return Failed(error.kind, _tidy(error), case, members, section, **facts)
    return Failed(error.kind, _tidy(error), "", tuple(range(ledger.world_size)), None, **facts)


def _facts(error):
    report = next(iter(sorted(error.reports.items())), (0, {}))[1]
    text = report.get("text", "")
    refusals = frozenset(name for name, words in REFUSALS.items() if re.search(words, text))
    op = re.search(r"\b(send|recv|receive)", text)
    op = {"receive": "recv"}.get(op[1], op[1]) if op and refusals else ""
    return {
        "awaited": error.waits,
        "raised": report.get("type", ""),
        "refusals": refusals,
        "refused_op": op,
    }


def students_fault(error: RankError) -> bool:
    """True if a line of the answer led to an exception on at least one rank, if the answer did not
    wait for an op, or if nothing raised (a hang). Otherwise the error is the check's own."""
    if any(report["type"] == "NotWaitedFor" for report in error.reports.values()):
        return True
    files = [file for report in error.reports.values() for file, _, _ in report["frames"]]
    return not error.reports or any(is_students(file) for file in files)


def _tidy(error):
    """The text of the error, without anything that differs from run to run and without advice that
    a student cannot follow in a check."""
    text = str(error).replace(" Slow, not stuck? Give launch.run a larger timeout=", "")
    return _of_the_answer(without_addresses(text))


def without_addresses(text):
    """The text without the addresses of objects, which differ from run to run."""
    return re.sub(r"( object)? at 0x[0-9a-f]+", "", text)


def _last_mark(entries, label=None):
    """The label of the last mark, or of the last mark with this label; "" if there is none, or if
    it does not open a case."""
    marks = [entry.file for entry in entries if entry.op == "mark" and label in (None, entry.file)]
    return marks[-1] if marks and not marks[-1].startswith(BEGINS) else ""


def _retold(hang, error, section, members, inside):
    """The launcher's verdict as it would be if every rank that is not inside a case had returned
    instead of waiting for the others."""
    ledger = error.ledger
    states = [
        SimpleNamespace(state=RUNNING if r in inside else RETURNED)
        for r in range(ledger.world_size)
    ]
    logs = [
        ledger.of(rank) if rank in inside else section.of(rank) for rank in range(ledger.world_size)
    ]
    busy = error.busy if hang == "stopped" else {}  # left out of the verdict on a hang
    read = Ledger(logs, None, [0] * len(logs))
    failure = Failure(hang, 0, states, read, [], busy, error.elapsed)
    lines = str(from_failure(failure, "")).splitlines()
    outsiders = tuple(f"  rank {r} " for r in range(ledger.world_size) if r not in members)
    return "\n".join(line for line in lines if not line.startswith(outsiders))


def begun(ledger):
    """The names of the exercises that the ranks have begun, in order. All ranks are in the same
    exercise, because a barrier follows each one."""
    return (
        [label.removeprefix(BEGINS) for label in ledger.marks if label.startswith(BEGINS)]
        if ledger
        else []
    )


def at_odds(ledger, name):
    """True if the ranks' calls in this exercise do not match, although all ranks have finished
    it."""
    return any(finding.certain for finding in audit(of_exercise(ledger, name)))


def of_exercise(ledger, name):
    """The part of every rank's log that was written during this exercise, with the marks in it."""
    parts = []
    for rank in range(ledger.world_size):
        inside, part = False, []
        for entry in ledger.of(rank):
            if entry.op == "mark" and entry.file.startswith(BEGINS):
                inside = entry.file == BEGINS + name
            elif inside:
                part.append(entry)
        parts.append(part)
    return Ledger(parts, None, [0] * ledger.world_size)


def of_error(error, where):
    """The Problem of an exception that a measure has caught. Like a failed run, it has the fact
    `failed`."""
    problem, name = raised(error, where), type(error).__name__
    refusals = frozenset(what for what, words in REFUSALS.items() if re.search(words, str(error)))
    # no line of the answer raised, but autograd refused what the answer's backward returned
    if problem.kind == "unreadable" and refusals:
        problem = Problem("raised", f"{where}: {name}: {error}", {"raised": name})
    problem.facts["failed"] = Failed(
        problem.kind, problem.text, "", (), None, raised=name, refusals=refusals
    )
    problem.trace = [where, name, sorted(refusals)]
    return problem
