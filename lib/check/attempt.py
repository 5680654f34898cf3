"""An answer on ranks that may raise: what it returned, or the Problem, once its part is
over on every rank."""

import re
import traceback

from lib import ledger
from lib.check import comm
from lib.check.exercise import Problem
from lib.check.failure import REFUSALS, Failed
from lib.check.guard import raised
from lib.check.traffic import in_words


def attempted(recorder, label, where, fn, *args, **named):
    """(what an answer returned, None), or (None, the Problem), when its part is over on every rank
    of control.

    label: of the ledger's section. The Problem is "raised", with facts as those of a failed run;
    "clash"; or "group", where it called for other ranks than are allowed.
    """
    out = problem = None
    ledger.mark(label)
    try:
        out = fn(*args, **named)
    except Exception as error:
        if type(error) is NotImplementedError:  # not written yet, on no rank
            raise
        problem = _of_error(recorder, label, where, error)
    ledger.mark("")
    recorder.end()
    if recorder.stray:
        op, ranks = recorder.stray
        allowed = " or ".join(str(list(one)) for one in recorder.allowed or [recorder.members])
        text = f"{where} called {op} on ranks {list(ranks)}, expected {allowed}"
        problem = Problem("group", text, {"ranks": ranks})
    return out, problem


def _of_error(recorder, label, where, error):
    if isinstance(error, comm.Clash):
        found = error.problem
        return Problem("clash", in_words(where, found), found.facts, [label, found.trace])
    problem, text = raised(error, where), str(error)
    refusals = frozenset(name for name, words in REFUSALS.items() if re.search(words, text))
    failed = Failed(
        "raised",
        text,
        label,
        recorder.members,
        None,
        raised=type(error).__name__,
        refusals=refusals,
    )
    problem.facts |= {"failed": failed}
    # then its words tell mistakes apart
    ours = traceback.extract_tb(error.__traceback__)[-1].filename == comm.__file__
    problem.trace = [label, type(error).__name__, text if ours else sorted(refusals)]
    return problem
