"""Finds the cells of a notebook that an answer can reach. When a lab is validated, only these cells
and those that they need have to run again in the unsolved notebook.

A cell that reads no answer, and nothing that was made with one, does the same in the student's
notebook as in the solution. In the example below, we therefore run the cells that read f, or that
read what was made with f, and the cells that these need:

    answer   def f(x): ...
    steps    n = 100                     reads no answer, but `mine` reads n
    mine     losses = train(f, n)        reads f
    figure   plots.curves(losses)        reads what was made with f
    given    plots.pipeline(4)           reads neither: left out

If `mine` reads f only as `use(f)`, it gets lib's own f in the unsolved lab. The check of f judges
lib's f as it judges an answer, so the outcome of `mine` is known already, and a shorter run reduces
`mine` to `use(f)` alone (through_use=False).

We take the names that a cell reads and binds from its bytecode, because bytecode is in the order of
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
    """What a cell does with the kernel's names. reads: those that it reads before it binds them.
    binds: all that it binds. replaces: those that it binds in every case, because the statement is
    in no branch. imports: those that it binds by import. changes: those whose content it may change
    (x[0] = 1, x.y = 1, the statement x.append(1))."""

    reads: set[str]
    binds: set[str]
    replaces: set[str]
    imports: set[str]
    changes: set[str]


def reached(nb: NotebookNode, through_use: bool = True) -> list[NotebookNode]:
    """The code cells that have a role in grading, those that answers reach, and those that all
    these need, in order.

    Without `through_use`, an answer does not reach a cell through `use(answer)`. A cell that is
    reached in no other way is then reduced to its calls of use().
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
    """The code cells, in order, that are needed to run `source` after the last cell of `nb`."""
    cells, names = _cells(nb)
    kept = {j for name in names_of(source).reads for j in _made_by(name, names)}
    return [cells[i] for i in sorted(_with_makers(kept, names))]


def _cells(nb: NotebookNode, through_use: bool = True) -> tuple[list[NotebookNode], list[Names]]:
    """The code cells, and what each does with names."""
    cells = [cell for cell in nb.cells if cell.cell_type == "code"]
    names = [names_of(cell.source, through_use) for cell in cells]
    imported = set().union(*(its.imports for its in names))  # modules, which no cell changes
    return cells, [its._replace(changes=its.changes - imported) for its in names]


def _with_makers(kept: set[int], names: list[Names]) -> set[int]:
    """The indices `kept`, and those of all cells that these need."""
    for i in reversed(range(len(names))):
        if i in kept:
            kept.update(j for name in names[i].reads for j in _made_by(name, names[:i]))
    return kept


def _made_by(name: str, names: list[Names]) -> Iterator[int]:
    """The indices of the cells that determine the value of `name` after all of them: the last one
    that replaces it, and those that change it later."""
    for j in reversed(range(len(names))):
        if name in names[j].binds | names[j].changes:
            yield j
        if name in names[j].replaces:
            return


def names_of(source: str, through_use: bool = True) -> Names:
    """What a cell with this source does with names, including the names that its functions read.

    Without `through_use`, `use(name)` does not count as reading `name`.
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
    """Yield (the instruction, such as "LOAD_NAME" or "STORE_NAME"; the name) for each use of a
    global name."""
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
