"""Lab 5, section 5: dispatch(x, routing), tokens to rows, and combine(rows, routing, n), rows to tokens."""

from functools import partial

from lib import moe
from lib.check.framework import Bundle, Claim, Exercise
from lib.check.lab5.dispatch_hints import COMBINE_HINTS, DISPATCH_HINTS
from lib.check.lab5.dispatch_runs import measured, run_combine, run_dispatch
from lib.check.lab5.here import found

DISPATCH = Exercise(
    name="dispatch",
    reference=moe.dispatch,
    measure=partial(measured, moe.dispatch, run=run_dispatch),
    worlds=(),
    claims=(
        Claim("a row for each pair", 3, "tokens with two pairs, one, none", found("value")),
        Claim("the gradient of x", 1, "a token's copies added up", found("gradient")),
        Claim(
            "nobody; left alone", 1, "no pairs, no tokens", lambda runs: found("none")(runs) or found("touched")(runs)
        ),
    ),
    hints=DISPATCH_HINTS,
)
COMBINE = Exercise(
    name="combine",
    reference=moe.combine,
    measure=partial(measured, moe.combine, run=run_combine),
    worlds=(),
    claims=(
        Claim("weighted, and added up", 5, "tokens with two pairs, one, none", found("value")),
        Claim("gradients", 2, "of rows and of weights", found("gradient")),
        Claim("nobody", 1, "no pairs: zeros; no tokens", found("none")),
        Claim("rows and routing left alone", 1, "", found("touched")),
    ),
    hints=COMBINE_HINTS,
)
EXERCISE = Bundle("dispatch_combine", (DISPATCH, COMBINE))
