"""Functions without ranks of tensors with gradients, in many cases; and the judges of what came.

    all cases are called, the first once more, then backward runs, the first call first; then all is
    looked at again

A case is {argument: value}; values and results are tensors, or named tuples of them (Choice,
Routing). What is right is what lib's function gives, gradients too, up to rounding. Of plain
numbers, lists and dicts: `pure.py`.

    values       kinds "built-in", "raised", "unreadable", "returned", "form", "value"; and "no
                 graph", where nothing was given or returned and the result is outside the graph
    gradients    "no graph", "backward", "value"
    left_alone   "input"
    kept, new    "not kept", "shared"

facts: case (its name), what (which tensor; of a gradient also `gradient`), nan, narrowed, failed;
again: it was right the first time.
"""

import torch

from lib.check.cases import form_of, name_of
from lib.check.claims import without_ranks
from lib.check.exercise import Problem
from lib.check.explain import rounded_words, two
from lib.check.pure import call, of_error

# of the largest number expected, or of 1
TOLERANCE = {
    torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2.0**-8, torch.bfloat16: 2.0**-5,
}  # fmt: skip
NARROWER = (torch.float32, torch.float16, torch.bfloat16)
FLOAT32 = 2.0**-22  # what a float64 loses in it, and a little more
SAMPLE = 12  # elements of each wrong tensor in a trace


def draw(seed, *shape):
    """Random numbers, normal, float64: the same everywhere and always."""
    return torch.randn(
        shape, generator=torch.Generator("cpu").manual_seed(seed), dtype=torch.float64, device="cpu"
    )


def parts(name, value):
    """{name: tensor} of a tensor, {name.field: tensor} of a named tuple; {} of anything else."""
    if torch.is_tensor(value):
        return {name: value}
    of_fields = {
        f"{name}.{field}": getattr(value, field) for field in getattr(value, "_fields", ())
    }
    return {field: tensor for field, tensor in of_fields.items() if torch.is_tensor(tensor)}


def flat(values):
    """{name: tensor} of all parts of {name: value}."""
    return {
        field: tensor
        for name, value in values.items()
        for field, tensor in parts(name, value).items()
    }


class Calls:
    """The measure of one function: calls(fn) -> {case: record}.

    right: lib's function, which the answer may not call. result: what it returns, in a word;
    fields: of a named tuple. learns: the arguments, or argument.field, to which a gradient goes.
    is_right: (got, want) -> may this be there too? may_leave_graph: why a result of nothing need
    not be differentiable, if so.
    """

    def __init__(
        self,
        right,
        cases,
        learns,
        result,
        fields=(),
        is_right=lambda got, want: False,
        may_leave_graph="",
    ):
        self.right, self.cases, self.learns, self.result, self.fields = (
            right,
            cases,
            learns,
            result,
            fields,
        )
        self.is_right, self.may_leave_graph = is_right, may_leave_graph

    def __call__(self, fn):
        records = {case: self._record(case, fn) for case in self.cases}
        first = next(iter(self.cases))
        again = self._record(first, fn)
        if (
            not records[first]["problem"]
            and not records[first]["wrong"]
            and (again["problem"] or again["wrong"])
        ):
            records[first] = again | {"again": True}
        for case, record in records.items():
            if not record["problem"] and not record["wrong"]:
                record["gradients"] = self._gradients(case, record)
        if not any(p.kind == "no graph" for r in records.values() for _, p, _ in r["gradients"]):
            for case, record in records.items():
                if not record["problem"] and not record["wrong"]:
                    record["wrong"] = self._outside_the_graph(case, record["out"])
        for record in records.values():
            now = parts("", record["out"])
            record["kept"] = all(
                torch.equal(now[name], tensor) for name, tensor in record["copies"].items()
            )
            record["shared"] = _shared(now, record["given"])
            before = flat(record["asked"])
            record["changed"] = [
                n for n, now in flat(record["given"]).items() if not torch.equal(now, before[n])
            ]
        return records

    def _record(self, case, fn):
        leaves, given = self._given(case)
        record = {
            "out": None,
            "problem": None,
            "wrong": [],
            "gradients": [],
            "given": given,
            "leaves": leaves,
        }
        record |= {"asked": self.cases[case], "copies": {}}
        out = call(fn, self.right, given.values())
        if isinstance(out, Problem):
            return record | {"problem": _in(case, out)}
        copies = {name: tensor.detach().clone() for name, tensor in parts("", out).items()}
        return record | {"out": out, "copies": copies, "wrong": self._wrong(case, out)}

    def _given(self, case):
        """({name: leaf}, {argument: a copy that learns where it is to})"""
        leaves = {}

        def copy(name, tensor):
            if name not in self.learns:
                return tensor.clone()
            leaves[name] = tensor.clone().requires_grad_()
            return leaves[name].clone()

        def given(arg, value):
            if torch.is_tensor(value):
                return copy(arg, value)
            copies = {
                name.rpartition(".")[2]: copy(name, tensor)
                for name, tensor in parts(arg, value).items()
            }
            return value._replace(**copies) if copies else value

        return leaves, {arg: given(arg, value) for arg, value in self.cases[case].items()}

    def _of(self, out):
        """[(what it is called, tensor), ...]"""
        return (
            [(f, getattr(out, f, None)) for f in self.fields]
            if self.fields
            else [(self.result, out)]
        )

    def _wrong(self, case, out):
        """[(what, Problem, sample), ...]"""
        if self.fields and not all(hasattr(out, field) for field in self.fields):
            words = f"{len(out)} values" if type(out) in (tuple, list) else form_of(out)
            text = f"{case}: expected a {self.result} with {', '.join(self.fields)}, got {words}"
            return [("", Problem("returned", text, {"case": case, "got": form_of(out)}), words)]
        wanted = self.right(*self._given(case)[1].values())
        found = []
        for (what, got), (_, want) in zip(self._of(out), self._of(wanted), strict=True):
            if not self.is_right(got, want) and (problem := compared(case, what, got, want)):
                found.append((what, problem, sample(got)))
        return found

    def _outside_the_graph(self, case, out):
        """[(what, Problem, sample), ...] of results that nobody can go backward from because there
        was nothing to compute: a rank on which that happens sends nothing in the backward pass, and
        the others wait for it."""
        learns = [tensor for name, tensor in flat(self.cases[case]).items() if name in self.learns]
        if self.may_leave_graph or all(x.numel() for x in (*learns, *parts("", out).values())):
            return []  # where there is a gradient, `gradients` looks at it
        found, wanted = [], self.right(*self._given(case)[1].values())
        for (what, got), (_, want) in zip(self._of(out), self._of(wanted), strict=True):
            if all(x.numel() for x in (want, *learns)):
                continue
            if want.requires_grad and not got.requires_grad:
                text = (
                    f"{case}: {what} is right and outside the graph (requires_grad is False). On a "
                    f"rank that has nothing to compute, the backward pass then stops here, and the "
                    f"other ranks wait for what it sends"
                )
                facts = {"case": case, "what": what, "gradient": True}
                found.append((what, Problem("no graph", text, facts), sample(got)))
        return found

    def _gradients(self, case, record):
        """[(what, Problem, sample), ...] of every result to every argument, or nothing."""
        leaves, given = self._given(case)
        wanted, found = self.right(*given.values()), []
        for seed, ((what, got), (_, want)) in enumerate(
            zip(self._of(record["out"]), self._of(wanted), strict=True)
        ):
            if (
                not want.requires_grad
                or not given
                or not want.numel()
                or not all(x.numel() for x in leaves.values())
            ):
                continue
            factors = draw(seed, *want.shape).to(want.dtype)
            right = torch.autograd.grad(
                want, list(leaves.values()), factors, retain_graph=True, allow_unused=True
            )
            for name, slope in zip(leaves, right, strict=True):
                if slope is not None:
                    found += _slope_of(
                        case, what, name, got, record["leaves"][name], factors, slope
                    )
        return found


def _slope_of(case, what, name, got, leaf, factors, want):
    said, facts = f"the gradient of {name}", {"case": case, "what": name, "gradient": True}
    lost = Problem(
        "no graph", f"{case}: {said}: none comes from {what} to what the function was given", facts
    )
    if not got.requires_grad:
        return [(said, lost, "none")]
    try:
        (slope,) = torch.autograd.grad(got, leaf, factors, retain_graph=True, allow_unused=True)
    except RuntimeError as error:
        problem = of_error(error)
        return [
            (said, Problem("backward", f"{case}: {said}: {error}", facts | problem.facts), "raised")
        ]
    if slope is None:
        return [(said, lost, "none")]
    problem = compared(case, said, slope, want)
    if not problem:
        return []
    problem.facts |= facts
    return [(said, problem, sample(slope))]


def _in(case, problem):
    failed = problem.fact("failed")
    trace = [case, failed.raised, sorted(failed.refusals)] if failed else [case]
    return Problem(problem.kind, f"{case}: {problem.text}", problem.facts | {"case": case}, trace)


def _shared(now, given):
    """Names of the given tensors in whose memory a result lies."""
    at = lambda tensor: tensor.untyped_storage().data_ptr()
    places = {at(tensor): name for name, tensor in flat(given).items() if tensor.numel()}
    return [
        places[at(tensor)] for tensor in now.values() if tensor.numel() and at(tensor) in places
    ]


def compared(case, what, got, want):
    """The Problem of a tensor that is not the one expected, up to rounding; None where it is."""
    facts = {
        "case": case,
        "what": what,
        "dtype": False,
        "shape": False,
        "got": form_of(got),
        "nan": False,
    }
    if not torch.is_tensor(got):
        return Problem(
            "returned", f"{case}: {what}: expected {form_of(want)}, got {form_of(got)}", facts
        )
    got, want = got.detach(), want.detach()
    facts["dims"] = got.dim()
    if got.shape == want.shape and got.dtype != want.dtype and got.dtype in NARROWER:
        # what is wrong beside the dtype comes first
        problem = compared(case, what, got.to(want.dtype), want)
        if problem and not problem.facts["narrowed"] and far(got.to(want.dtype), want):
            problem.text += f"\nIts dtype is {name_of(got.dtype)}, expected {name_of(want.dtype)}."
            return problem
    if got.shape != want.shape or got.dtype != want.dtype:
        facts |= {"dtype": got.shape == want.shape, "shape": got.shape != want.shape}
        facts["floats"] = got.is_floating_point()
        return Problem(
            "form", f"{case}: {what}: expected {form_of(want)}, got {form_of(got)}", facts
        )
    off = (got.double() - want.double()).abs()
    finite = want[want.isfinite()].abs()
    largest = finite.max().item() if finite.numel() else 0
    near = (off <= TOLERANCE.get(want.dtype, 0) * max(1.0, largest)) | (got == want)  # -inf is -inf
    wrong = (~near).nonzero()
    if not len(wrong):
        return None
    index = tuple(wrong[0].tolist())
    facts["nan"] = got.is_floating_point() and bool(got.isnan().any())
    facts["narrowed"] = want.dtype == torch.float64 and bool(
        (near | (off <= FLOAT32 * max(1.0, largest))).all()
    )
    at = f", element {index[0] if len(index) == 1 else index}" if index else ""
    x, y = two(want[index], got[index])
    said = f"\n{rounded_words(want.dtype)}" if facts["narrowed"] else ""
    return Problem("value", f"{case}: {what}{at}: expected {x}, got {y}{said}", facts)


def far(got, want) -> bool:
    """Is a tensor further from the right one than rounding to 8 bits would bring it?"""
    largest = max(1.0, want[want.isfinite()].abs().max().item()) if want.numel() else 1.0
    off = (got.double() - want.double()).abs()
    return bool((off > 2.0**-6 * largest).any())


def sample(got):
    """The first elements, as numbers that rounding does not change; of what is no
    tensor, its form."""
    if not torch.is_tensor(got):
        return form_of(got)
    digits = 9 if got.dtype == torch.float64 else 4
    return [
        list(got.shape),
        [round(float(x), digits) + 0.0 for x in got.detach().flatten()[:SAMPLE]],
    ]


def values(calls, cases):
    """Every result as lib's; a field of all cases before the next field."""
    return _first("wrong", calls, cases)


def gradients(calls, cases):
    return _first("gradients", calls, cases)


def _first(key, calls, cases):
    @without_ranks
    def judge(records):
        if failed := next((r["problem"] for c in cases if (r := records[c])["problem"]), None):
            return once(records, failed)
        wrong = [(c, *one) for c in cases for one in records[c][key]]
        if not wrong:
            return None
        order = list(
            dict.fromkeys(
                what for _, what, _, _ in sorted(wrong, key=lambda one: _place(calls, one[1]))
            )
        )
        problem = next(problem for _, what, problem, _ in wrong if what == order[0])
        problem.trace = [
            key,
            order,
            [[c, numbers] for c, what, _, numbers in wrong if what == order[0]],
        ]
        return once(records, problem)

    return judge


def once(records, problem):
    """The Problem of a case; facts: again, that the first call was right and the
    same call later is not."""
    if records[problem.facts["case"]].get("again"):
        problem.text += "\nThe first call was right, and the same call later is not."
        problem.facts["again"], problem.trace = True, "again"
    return problem


def _place(calls, what):
    return calls.fields.index(what) if what in calls.fields else -1


def left_alone(cases):
    return _each(cases, "changed", "input", "{} has changed, the caller's own")


def new(cases):
    return _each(
        cases,
        "shared",
        "shared",
        "the result lies in the memory of {}: who changes it changes that too",
    )


def kept(cases):
    """What a call returned is the same after all later calls, and after backward."""

    @without_ranks
    def judge(records):
        for case in cases:
            if not records[case]["kept"]:
                return Problem(
                    "not kept", f"{case}: the result has changed with a later call", {"case": case}
                )
        return None

    return judge


def _each(cases, key, kind, words):
    @without_ranks
    def judge(records):
        for case in cases:
            if names := records[case][key]:
                return Problem(
                    kind, f"{case}: {words.format(names[0])}", {"case": case, "what": names[0]}
                )
        return None

    return judge
