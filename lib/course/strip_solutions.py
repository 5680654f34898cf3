"""Takes out of lib's source what the labs ask students to write, and puts a call of `reference` in
its place, which inserts the compiled code.

    # exercise: lab0.ring_all_reduce             # exercise: lab0.ring_all_reduce
    def ring_all_reduce(tensor, group=None):     def ring_all_reduce(tensor, group=None):
        \"\"\"Reduce `tensor` ...\"\"\"                   \"\"\"Reduce `tensor` ...\"\"\"
        with line(tensor) as x:           --->       raise NotImplementedError
            ...

                                                 ring_all_reduce = reference(
                                                     "lab0.ring_all_reduce", globals()
                                                 )

The marker is the line directly above a definition and its decorators. The definition is a function
or class at the top level of a module, or a `key=lambda ...`. A class keeps its docstring, and its
public methods and `__init__` keep their signatures and docstrings. A private function or class that
only such definitions use would give the solution away, so it is taken out as well. Everything else
stays as it is, so the rest of lib runs as before.
"""

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass

from .notebook import CourseError

MARKER = re.compile(r"\s*# exercise: (?P<lab>lab\d+)\.(?P<name>\w+)")
LIKE_A_MARKER = re.compile(r"^\s*#+\s*exercise\b", re.IGNORECASE)
IMPORT = "from lib.reference import reference  # until the lab is over: see lib/reference.py"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Marked:
    """One marked definition. first, last: its lines, counted from 1, with its decorators and
    without the marker."""

    lab: str
    name: str
    node: ast.stmt | ast.keyword
    first: int
    last: int

    @property
    def key(self) -> str:
        """ "lab0.ring_all_reduce", the name under which `reference` finds the compiled code."""
        return f"{self.lab}.{self.name}"


@dataclass(frozen=True)
class Definition:
    """A definition that was taken out. text: its source. line: the line of the remaining source
    that its tracebacks name."""

    text: str
    line: int


def marked(source: str) -> list[Marked]:
    """The marked definitions of a module, in order. Raises CourseError for a misspelt marker, and
    for one that is not directly above a definition of its name."""
    tree = ast.parse(source)
    starts = {
        _first_line(node): node
        for node in tree.body
        if isinstance(node, (*FUNCTIONS, ast.ClassDef))
    }
    starts |= {
        k.lineno: k
        for k in ast.walk(tree)
        if isinstance(k, ast.keyword) and isinstance(k.value, ast.Lambda)
    }
    found = []
    for number, line in enumerate(source.splitlines(), 1):
        marker = MARKER.fullmatch(line)
        if not marker and LIKE_A_MARKER.match(line):
            raise CourseError(
                f"line {number}: {line.strip()!r} is no marker: write '# exercise: "
                f"lab0.function_name'"
            )
        if not marker:
            continue
        node = starts.get(number + 1)
        if node is None or getattr(node, "name", marker["name"]) != marker["name"]:
            raise CourseError(
                f"line {number}: {line.strip()!r} must stand right above the definition of that "
                f"name"
            )
        found.append(Marked(marker["lab"], marker["name"], node, number + 1, node.end_lineno))
    return found


def helpers(source: str, taken: list[Marked]) -> list[Marked]:
    """The private functions and classes of the module that only these definitions use, directly or
    through one another."""
    tops = [
        node
        for node in ast.parse(source).body
        if not isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    lab_of = {one.node.name: one.lab for one in taken if not isinstance(one.node, ast.keyword)}
    private = {
        n.name: n
        for n in tops
        if isinstance(n, (*FUNCTIONS, ast.ClassDef)) and n.name.startswith("_")
    }
    users = {name: [] for name in private}
    for node in tops:
        for name in {
            inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)
        } & private.keys():
            if node is not private[name]:
                users[name].append(getattr(node, "name", None))
    found = {name for name in private if users[name]}
    while unfit := {
        name for name in found if not all(user in lab_of or user in found for user in users[name])
    }:
        found -= unfit
    while reached := {n: lab_of[u] for n in found - lab_of.keys() for u in users[n] if u in lab_of}:
        lab_of |= reached
    return [
        Marked(
            lab_of[name], name, private[name], _first_line(private[name]), private[name].end_lineno
        )
        for name in sorted(found & lab_of.keys())
    ]


def strip_solutions(source: str, keep: Iterable[str] = ()) -> tuple[str, dict[str, Definition]]:
    """Return (the source with `reference` calls in place of its marked definitions, {key: the
    Definition}).

    keep: labs whose definitions stay as they are. Raises CourseError for a wrong marker, or a
    definition that cannot be taken out.
    """
    taken = [one for one in marked(source) if one.lab not in set(keep)]
    if not taken:
        return source, {}
    taken = sorted([*taken, *helpers(source, taken)], key=lambda one: one.first)
    lines = source.splitlines()
    docstring = _docstring(ast.parse(source))
    begin = docstring.end_lineno if docstring else 0
    kept, definitions = [*lines[:begin], "", IMPORT], {}
    for one in taken:
        kept += lines[begin : one.first - 1]
        begin = one.last
        if one.name.startswith("_"):
            definitions[one.key] = Definition(
                "\n".join(lines[one.first - 1 : one.last]), len(kept) + 1
            )
            kept.append(f'{one.name} = reference("{one.key}", globals())')
        elif isinstance(one.node, ast.keyword):
            if not re.fullmatch(r",?\s*(#.*)?", lines[one.last - 1][one.node.end_col_offset :]):
                raise CourseError(
                    f"line {one.last}: nothing but a comma may follow the exercise {one.key}"
                )
            text = f"{one.name} = {ast.get_source_segment(source, one.node.value)}"
            indent = " " * one.node.col_offset
            kept.append(f'{indent}{one.node.arg}=reference("{one.key}", globals()),')
            definitions[one.key] = Definition(text, len(kept))
        else:
            stub = _stub(one.node, lines)
            definitions[one.key] = Definition(
                "\n".join(lines[one.first - 1 : one.last]), len(kept) + 1
            )
            kept += [*stub, "", "", f'{one.name} = reference("{one.key}", globals())']
    return "\n".join([*kept, *lines[begin:]]) + "\n", definitions


def _stub(node: ast.stmt, lines: list[str]) -> list[str]:
    """The lines of a definition that stay: decorators, signature and docstring, and, in a class,
    those of its public methods and `__init__`."""
    docstring = _docstring(node)
    if docstring is None or node.body[0].lineno == node.lineno:
        raise CourseError(
            f"line {node.lineno}: {node.name} is an exercise, so it needs a docstring on its own "
            f"lines"
        )
    stub = lines[_first_line(node) - 1 : docstring.end_lineno]
    if isinstance(node, FUNCTIONS):
        return [*stub, " " * docstring.col_offset + "raise NotImplementedError"]
    for method in node.body:
        public = isinstance(method, FUNCTIONS) and (
            method.name == "__init__" or not method.name.startswith("_")
        )
        if public and method.body[0].lineno > method.lineno:
            told = _docstring(method)
            ends = told.end_lineno if told else _before_comments(method, lines)
            indent = " " * method.body[0].col_offset
            stub += [
                "",
                *lines[_first_line(method) - 1 : ends],
                f"{indent}raise NotImplementedError",
            ]
    return stub


def _before_comments(method: ast.stmt, lines: list[str]) -> int:
    """The last line of the signature of a method without a docstring. Comments above the method's
    first statement do not stay."""
    last = method.body[0].lineno - 1
    while lines[last - 1].strip().startswith("#"):
        last -= 1
    return last


def _first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _docstring(node: ast.AST) -> ast.stmt | None:
    first = node.body[0] if node.body else None
    return first if first is not None and ast.get_docstring(node, clean=False) is not None else None
