"""python tests/check/mutants.py [exercise ...]: which small edits of the references do their checks
let pass?

A mutant is lib's function or class with one small change, made from its syntax tree:

    operator    + for -, * for /, // for %, < for <=, == for !=, and for or; a `not` is dropped
    constant    n + 1 for n, True for False
    rank        rank 0 for this rank; the rank or the size of all ranks for that of the group
    group       a call without the group that it was given
    order       two arguments or two lines exchanged; reversed(x) or sorted(x) becomes x
    copy        x for x.clone(), x.detach(), x.contiguous(), x.float(), ...; no dtype=...
    line        a line is left out

Each is judged as a student's answer is. One that passes is either as right as the reference, or a
mistake that the check does not see. The list is for a reader, who turns the second kind into a
known mistake (mistakes.py) and mends the check.
"""

import ast
import copy
import inspect
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from mistakes import judged_together, written

from lib.check.exercises import FUNCTIONS
from lib.check.framework import evaluate

OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mod, ast.Mod: ast.FloorDiv,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
COPIES = {"clone", "detach", "contiguous", "float", "double", "type_as", "copy"}
ORDERS = {"reversed", "sorted", "list", "tuple"}
OF_A_GROUP = {"get_rank", "get_world_size"}
ALIKE = {"min", "max", "isinstance"}  # the order of their arguments is nobody's mistake
TOGETHER = 12  # mutants that are judged in one launch


@dataclass(frozen=True)
class Mutant:
    kind: str
    line: int  # of the reference's own text
    change: str
    text: str  # the reference, changed

    def made(self, reference):
        """The changed function or class, as if a student had written it."""
        return written(self.text, reference)


def mutants(reference, methods=()) -> list[Mutant]:
    """All mutants of a function or class, in the order of its lines; none twice. methods: of a
    class, the names of those that are changed; without them, all are."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(reference)))
    for node in ast.walk(tree):  # a docstring is no code
        body = getattr(node, "body", None)
        if isinstance(body, list) and len(body) > 1 and _is_text(body[0]):
            del body[0]
    original, found = ast.unparse(tree), {}
    for number in range(len(_code(tree))):
        for which in range(99):
            changed = copy.deepcopy(tree)
            node = _code(changed)[number]
            before = ast.unparse(node) if not isinstance(node, ast.Module) else ""
            change = next((one for i, one in enumerate(_changes(node)) if i == which), None)
            if change is None:
                break
            kind, says, line = change
            text = ast.unparse(ast.fix_missing_locations(changed))
            if text != original and text not in found:
                says = says or f"{_short(before)} -> {_short(ast.unparse(node))}"
                found[text] = Mutant(kind, line or getattr(node, "lineno", 0), says, text)
    theirs = [node for node in ast.walk(tree) if getattr(node, "name", "") in methods]
    inside = lambda line: any(node.lineno <= line <= node.end_lineno for node in theirs)
    kept = [one for one in found.values() if not methods or inside(one.line)]
    return sorted(kept, key=lambda mutant: mutant.line)


def _code(tree):
    """The nodes of the tree, without what only words an error."""
    found, waiting = [], [tree]
    while waiting:
        node = waiting.pop(0)
        found.append(node)
        waiting += [n for n in ast.iter_child_nodes(node) if not isinstance(n, ast.Raise)]
    return found


def _changes(node) -> Iterator[tuple[str, str, int]]:
    """Change the node in place, in one way at a time, and back again: (kind, what it becomes, or ""
    where the node itself shows it, the line or 0 for the node's)."""
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(node.op) in OPERATORS:
        node.op, before = OPERATORS[type(node.op)](), node.op
        yield "operator", "", 0
        node.op = before
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OPERATORS:
        node.ops[0], before = OPERATORS[type(node.ops[0])](), node.ops[0]
        yield "operator", "", 0
        node.ops[0] = before
    if isinstance(node, ast.Constant) and type(node.value) in (int, bool):
        before = node.value
        node.value = not before if isinstance(before, bool) else before + 1
        yield "constant", "", 0
        node.value = before
    if isinstance(node, ast.Call):
        yield from _of_a_call(node)
    for field in ("body", "orelse"):
        lines = getattr(node, field, None)
        if isinstance(lines, list):
            yield from _of_lines(lines)
    for name, value in ast.iter_fields(node):
        yield from _of_a_part(node, name, value)


def _of_a_call(node):
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    args, keywords = node.args, node.keywords
    if name in OF_A_GROUP and args:
        node.args = []
        yield "rank", "", 0
    for keyword in [k for k in keywords if k.arg in ("group", "dtype")]:
        node.args, node.keywords = args, [k for k in keywords if k is not keyword]
        yield ("group" if keyword.arg == "group" else "copy"), "", 0
    node.args, node.keywords = args, keywords
    is_fixed = not any(isinstance(arg, ast.Starred) for arg in args)
    if len(args) > 1 and is_fixed and name not in ALIKE:
        node.args = [args[1], args[0], *args[2:]]
        yield "order", "", 0
        node.args = args


def _of_lines(lines):
    """Leave a line out, or exchange it with the next one. Lines that make a name stay where they
    are: without them, what reads the name fails, which any check sees."""
    for i, line in enumerate(lines):
        if not _acts(line):
            continue
        lines[i] = ast.Pass()
        yield "line", f"left out: {_short(ast.unparse(line))}", line.lineno
        lines[i] = line
        if i + 1 < len(lines) and _acts(lines[i + 1]):
            after = lines[i + 1]
            lines[i], lines[i + 1] = after, line
            yield "order", f"after the next line: {_short(ast.unparse(line))}", line.lineno
            lines[i], lines[i + 1] = line, after


def _acts(line):
    """Is it a line that does something, and neither a definition nor an error that is raised?"""
    if isinstance(line, ast.FunctionDef | ast.ClassDef | ast.Return | ast.Pass | ast.Raise):
        return False
    if isinstance(line, ast.If) and all(isinstance(one, ast.Raise) for one in line.body):
        return False
    return not any(
        isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
        for part in ast.walk(line)
        if isinstance(line, ast.Assign | ast.AnnAssign)
    )


def _of_a_part(node, name, value):
    """What stands in place of one child of the node."""
    for child, put in _children(node, name, value):
        if isinstance(child, ast.Call):
            method = child.func.attr if isinstance(child.func, ast.Attribute) else ""
            function = getattr(child.func, "id", "")
            if method in COPIES and not child.args:
                put(child.func.value)
                yield "copy", "", 0
            elif function in ORDERS and len(child.args) == 1:
                put(child.args[0])
                yield "order", "", 0
            elif method == "get_rank":
                put(ast.Constant(0))
                yield "rank", "", 0
            put(child)
        elif isinstance(child, ast.UnaryOp) and isinstance(child.op, ast.Not):
            put(child.operand)
            yield "operator", "", 0
            put(child)
        elif isinstance(child, ast.Name) and child.id == "rank" and isinstance(child.ctx, ast.Load):
            put(ast.Constant(0))
            yield "rank", "", 0
            put(child)


def _children(node, name, value):
    if isinstance(value, list):
        for i, child in enumerate(value):
            yield child, lambda new, i=i: value.__setitem__(i, new)
    else:
        yield value, lambda new: setattr(node, name, new)


def _is_text(node):
    return isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str)


def _short(text):
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:57] + "..."


def survivors(exercise, of=None) -> tuple[list[Mutant], int]:
    """(the mutants that pass the exercise's check, the number of all). Only methods that the
    answer has to write are changed, if the exercise names them."""
    methods = getattr(exercise.measure, "writes", ())
    every, passed = mutants(exercise.reference, methods) if of is None else of, []
    for first in range(0, len(every), TOGETHER):
        some, made = [], []
        for mutant in every[first : first + TOGETHER]:
            try:
                made.append(mutant.made(exercise.reference))
                some.append(mutant)
            except Exception:  # it does not even begin, as with a default that is no number
                continue
        if not exercise.worlds:
            outcomes = [evaluate(exercise, answer) for answer in made]
        else:
            outcomes = judged_together(exercise, made) if made else []
        passed += [one for one, outcome in zip(some, outcomes, strict=True) if outcome.passed]
    return passed, len(every)


def main(names: list[str]) -> None:
    if unknown := set(names) - set(FUNCTIONS):
        raise SystemExit(f"there is no exercise {', '.join(sorted(unknown))}")
    left, total = 0, 0
    for name in names or FUNCTIONS:
        passed, number = survivors(FUNCTIONS[name])
        left, total = left + len(passed), total + number
        print(f"{name}: {len(passed)} of {number} mutants pass", flush=True)
        for mutant in passed:
            print(f"    {mutant.kind:<9} line {mutant.line:>3}  {mutant.change}")
    print(f"all: {left} of {total} pass ({left / max(total, 1):.1%})")


if __name__ == "__main__":
    main(sys.argv[1:])
