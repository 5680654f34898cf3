"""Which cells of a notebook an answer can reach: these are run again where the lab is unsolved.

A cell that reads no answer, and nothing that was made with one, does in the student's notebook what
it did in the solution. Here only what reads f, or what was made with f, is worth a second run, and
the cell that these need:

    answer   def f(x): ...
    steps    n = 100                     reads no answer, but `mine` reads n
    mine     losses = train(f, n)        reads f
    figure   plots.curves(losses)        reads what was made with f
    given    plots.pipeline(4)           reads neither: left out

Where it reads f as `use(f)` alone, it gets lib's own in the unsolved lab, which f's check has
judged as it judges an answer. So much is known before it runs, and it may be left to a longer run:
then of `mine` only `use(f)` is left.

Who reads and binds which names is taken from the cell's bytecode, whose order is that of
evaluation.
"""

import ast
import dis
from collections.abc import Iterator
from types import CodeType
from typing import NamedTuple

from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode

from . import notebook

BRANCHES = (ast.If, ast.For, ast.While, ast.Try, ast.Match)


class Names(NamedTuple):
    """What a cell does with the names of its kernel. reads: those it has not bound before. binds:
    all that it binds. replaces: what it binds whatever happens, in no branch. imports: what it
    binds by import. changes: whose content it may change (x[0] = 1, x.y = 1, the statement
    x.append(1))."""

    reads: set[str]
    binds: set[str]
    replaces: set[str]
    imports: set[str]
    changes: set[str]


def reached(nb: NotebookNode, through_use: bool = True) -> list[NotebookNode]:
    """The code cells that have a role in grading, those that answers reach, and what all these
    need, in order.

    Without `through_use`, no answer reaches a cell by `use(answer)`: if that is all, the cell is
    its calls of use().
    """
    cells, names = _cells(nb, through_use)
    kept, made_with, answers, left = set(), set(), set(), {}
    for i, cell in enumerate(cells):
        role, its = notebook.role(cell), names[i]
        if role == "answer" or (not role and its.reads & made_with):
            made_with |= its.binds | its.changes
            answers |= its.binds if role else set()
            kept.add(i)
        else:
            kept |= {i} if role else set()
            if not role and (used := sorted(answers & made_with & names_of(cell.source).reads)):
                left[i] = NotebookNode(cell, source="\n".join(f"use({name})" for name in used))
            made_with -= its.replaces
    kept = _with_makers(kept, names)
    return [cells[i] if i in kept else left[i] for i in sorted(kept | left.keys())]


def needed(nb: NotebookNode, source: str) -> list[NotebookNode]:
    """The code cells that have made what `source`, run after all of them, would read, in order."""
    cells, names = _cells(nb)
    kept = {j for name in names_of(source).reads for j in _made_by(name, names)}
    return [cells[i] for i in sorted(_with_makers(kept, names))]


def _cells(nb: NotebookNode, through_use: bool = True) -> tuple[list[NotebookNode], list[Names]]:
    """The code cells, and what each does with names."""
    cells = [cell for cell in nb.cells if cell.cell_type == "code"]
    names = [names_of(cell.source, through_use) for cell in cells]
    imported = set().union(*(its.imports for its in names))  # no cell changes what these hold
    return cells, [its._replace(changes=its.changes - imported) for its in names]


def _with_makers(kept: set[int], names: list[Names]) -> set[int]:
    """The places `kept`, and those of all cells that these need."""
    for i in reversed(range(len(names))):
        if i in kept:
            kept.update(j for name in names[i].reads for j in _made_by(name, names[:i]))
    return kept


def _made_by(name: str, names: list[Names]) -> Iterator[int]:
    """The places of the cells that gave `name` what it holds after all of them: back to the last
    that replaces it."""
    for j in reversed(range(len(names))):
        if name in names[j].binds | names[j].changes:
            yield j
        if name in names[j].replaces:
            return


def names_of(source: str, through_use: bool = True) -> Names:
    """What a cell of this source does with names; of the functions that it defines, what they read
    of the kernel's.

    Without `through_use`, `use(name)` reads nothing.
    """
    tree = ast.parse(TransformerManager().transform_cell(source))
    tree = tree if through_use else ast.fix_missing_locations(_WithoutUse().visit(tree))
    reads, binds = set(), set()
    for does, name in _in_order(compile(tree, "cell", "exec")):
        if "STORE" in does:
            binds.add(name)
        elif name not in binds:
            reads.add(name)
    simple = [statement for statement in tree.body if not isinstance(statement, BRANCHES)]
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return Names(reads, binds, _stored(simple), _stored(imports), set(_changed(tree)))


class _WithoutUse(ast.NodeTransformer):
    """use(name) -> use"""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        match node:
            case ast.Call(ast.Name("use"), [ast.Name()], []):
                return node.func
        return self.generic_visit(node)


def _stored(statements: list[ast.stmt]) -> set[str]:
    return {
        name
        for does, name in _in_order(compile(ast.Module(statements, []), "cell", "exec"))
        if "STORE" in does
    }


def _in_order(code: CodeType) -> Iterator[tuple[str, str]]:
    """("LOAD_NAME" | "LOAD_GLOBAL" | "STORE_NAME", name) of the module's names, as they come."""
    for step in dis.get_instructions(code):
        if isinstance(step.argval, CodeType):
            yield from ((does, name) for does, name in _in_order(step.argval) if "LOAD" in does)
        elif step.opname in ("LOAD_NAME", "LOAD_GLOBAL", "STORE_NAME", "STORE_GLOBAL"):
            yield step.opname, step.argval


def _changed(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        place = node.value.func if called else node
        if isinstance(place, ast.Attribute | ast.Subscript) and (
            called or not isinstance(place.ctx, ast.Load)
        ):
            while isinstance(place, ast.Attribute | ast.Subscript):
                place = place.value
            if isinstance(place, ast.Name):
                yield place.id
