"""A bundle of all labs says no solution a second time: not in a check's expected value, nor in a
cost formula.

What is left out of lib, and what the notebooks ask for, is cut into statements, alone and two and
three in a row, their variables' names taken away. Each that is long enough to be an idea is looked
for in every file of the bundle.
"""

import ast

import pytest

from lib.course import notebook
from lib.course.__main__ import main
from lib.course.notebook import ROOT
from lib.course.strip_solutions import marked

LONG = {"lib/check": 150, "": 170}  # characters of a shape; in the checks, less is too much
WHOLE = 60  # characters of the shape of a function's whole body
# any function on ranks begins so
NO_IDEA = ("rank, world_size = dist.get_rank(group), dist.get_world_size(group)",)
SIBLINGS = {"lib/collectives/tree.py": "reduce, which no lab asks for, is broadcast backward"}


def shape(node):
    """What a piece of source says, whatever its variables and texts are called."""
    if isinstance(node, list):
        return f"[{' '.join(map(shape, node))}]"
    if isinstance(node, (ast.Name, ast.arg, ast.JoinedStr)):
        return "_"
    if isinstance(node, ast.Constant):
        return "_" if isinstance(node.value, str) else repr(node.value)
    if isinstance(node, ast.AST):
        fields = (
            shape(value)
            for name, value in ast.iter_fields(node)
            if name not in ("ctx", "kind", "type_comment")
        )
        return f"{type(node).__name__}({' '.join(fields)})"
    return str(node)


NOTHING = {shape(ast.parse(text).body[0]) for text in NO_IDEA}


def ideas(source, long):
    """{its shape: the text} of all that is long enough."""
    found = {}
    for node in ast.walk(ast.parse(source)):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, [])
            block = block if isinstance(block, list) else [block]  # a lambda's
            shapes = [
                shape(one.value if isinstance(one, ast.Return) and one.value else one)
                for one in block
            ]
            for first in range(len(block)):
                for last in range(first + 1, min(first + 3, len(block)) + 1):
                    told = "".join(one for one in shapes[first:last] if one not in NOTHING)
                    if len(told) >= long:
                        found[told] = (block[first].lineno, block[last - 1].end_lineno)
    return found


def repeated(solutions, source, long):
    """[(exercise, (first, last line of the source)), ...]: which solutions, {idea:
    exercise}, stand there too."""
    here = ideas(source, long)
    return [(solutions[one], here[one]) for one in solutions.keys() & here.keys()]


@pytest.fixture(scope="module")
def solutions():
    """{idea: "lab0.broadcast", of lib's source, or "lab0_concepts broadcast-answer", of the
    notebook's}"""
    found = {}
    for path in sorted((ROOT / "lib").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for one in marked(source) if "course" not in path.parts else ():
            node = one.node.value if isinstance(one.node, ast.keyword) else one.node
            found |= dict.fromkeys(ideas(ast.unparse(node), min(LONG.values())), one.key)
    for lab in notebook.labs(ROOT):
        for exercise in notebook.exercises(notebook.read(notebook.solution_path(ROOT, lab))):
            for answer in exercise.answers:
                found |= dict.fromkeys(
                    ideas(answer.source, min(LONG.values())), f"{lab} {answer.id}"
                )
    return found


def bodies(source):
    """{its shape: line} of the whole body of each function, however short, without
    its docstring."""
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            body = node.body if isinstance(node.body, list) else [node.body]
            body = [
                one
                for one in body
                if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
            ]
            told = "".join(
                shape(one.value if isinstance(one, ast.Return) and one.value else one)
                for one in body
            )
            if len(told) >= WHOLE and "NotImplementedError" not in ast.unparse(node):
                found[told] = node.lineno
    return found


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    out = tmp_path_factory.mktemp("release") / "bundle"
    labs = [word for lab in notebook.labs(ROOT) for word in ("--lab", lab)]
    assert main(["release", str(out), *labs]) == 0
    return out


def test_no_file_of_a_bundle_repeats_what_a_solution_says(bundle, solutions):
    found = {}
    for path in sorted(bundle.rglob("*.py")):
        name = path.relative_to(bundle).as_posix()
        long = next(long for folder, long in LONG.items() if name.startswith(folder))
        if name not in SIBLINGS and (
            told := repeated(solutions, path.read_text(encoding="utf-8"), long)
        ):
            found[name] = told[0]
    assert not found


def test_no_function_of_a_bundle_is_an_answer_however_short(bundle):
    answers = {}
    for lab in notebook.labs(ROOT):
        for exercise in notebook.exercises(notebook.read(notebook.solution_path(ROOT, lab))):
            for answer in exercise.answers:
                answers |= dict.fromkeys(bodies(answer.source), f"{lab} {answer.id}")
    assert len(answers) > 100
    found = {}
    for path in sorted(bundle.rglob("*.py")):
        here = bodies(path.read_text(encoding="utf-8"))
        if same := answers.keys() & here.keys():
            found[path.relative_to(bundle).as_posix()] = [
                (answers[told], here[told]) for told in same
            ]
    assert not found


def test_a_solution_with_other_names_is_found():
    said = dict.fromkeys(
        ideas("def f(x, N):\n    return 2 * (N - 1) * (x.alpha + x.n / N * x.beta)", 100), "a"
    )
    assert repeated(said, "g = lambda y, M: 2 * (M - 1) * (y.alpha + y.n / M * y.beta)", 100) == [
        ("a", (1, 1))
    ]
    assert not repeated(said, "g = lambda y, M: 2 * M * (y.alpha + y.n / M * y.beta)", 100)
