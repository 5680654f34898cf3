"""Known mistakes of an exercise: what students get wrong, each with the name of its cause.

    MISTAKES = (
        Mistake("a round too few", edit("range(world_size - 1)", "range(world_size - 2)")),
        Mistake("every N-th row", lambda x, w: ...),
    )

stands in lab0/mistakes_<exercise>.py. For an exercise of several functions (a Bundle), MISTAKES is
{name of the function: (Mistake, ...)}. A mistake is an edit of the reference where that says it,
otherwise a function. Its name is the name of one of the exercise's hints, whose sentence in
sentences/<lab>.toml is what a student reads.

`python tests/check/fingerprints.py [exercise ...]` judges each mistake as it judges any answer, and
writes what it leaves behind into lib/check/fingerprints/, a table that ships. The mistakes
themselves are tests (test_answers.py), and no release has them.
"""

import ast
import functools
import hashlib
import inspect
import json
import linecache
import sys
import textwrap
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import util
from pathlib import Path

from lib.check import fingerprints
from lib.check.framework import Bundle, Outcome, evaluate
from lib.check.side_by_side import SideBySide

# hints that no fingerprint tells
TOLD_WITHOUT = {"called what it builds", "called lib's", "not written", "another kind of result"}
FILE = "a_mistake.py"  # where the logs say that it stands
HERE = Path(__file__).parent
CHECK = Path(fingerprints.__file__).parent
NO_PRINTS = "causes exercise fingerprints framework guard left_out own_cells python_errors symptoms"
NOT_IN_PRINTS = {CHECK / f"{name}.py" for name in NO_PRINTS.split()}


@dataclass(frozen=True)
class Edit:
    """The reference with other text in some places: changes is ((this, that), ...), each `this`
    once in it.

    Where one of them is not in the reference itself, it is in its module: what the reference calls
    there may be wrong.
    """

    changes: tuple[tuple[str, str], ...]

    def then(self, old, new):
        """This edit, and one more."""
        return Edit((*self.changes, (old, new)))

    def of(self, reference):
        text = textwrap.dedent(inspect.getsource(reference))
        module, where = sys.modules[reference.__module__], reference.__name__
        if not all(old in text for old, _ in self.changes):
            text, where = inspect.getsource(module), f"{module.__name__}, where {where} is"
        for old, new in self.changes:
            if text.count(old) != 1:
                raise ValueError(
                    f"{old!r} is {text.count(old)} times in {where}, expected once: name more of it"
                )
            text = text.replace(old, new)
        return written(text, reference)


def written(text: str, reference):
    """The function or class that `text`, another version of the reference's, defines: as if a
    student had written it beside what the reference has around it."""
    linecache.cache[FILE] = (len(text), None, text.splitlines(True), FILE)
    scope = dict(vars(sys.modules[reference.__module__])) | {"__name__": "a_mistake"}
    del scope[reference.__name__]  # where the text defines nothing, that is an error
    exec(compile(text, FILE, "exec"), scope)
    return scope[reference.__name__]


def edit(old: str, new: str) -> Edit:
    return Edit(((old, new),))


@dataclass(frozen=True)
class Mistake:
    """hint: the name of one of the exercise's hints."""

    hint: str
    answer: Callable | Edit

    def made(self, reference):
        """The answer, as a student's would be."""
        if isinstance(self.answer, Edit):
            return self.answer.of(reference)
        from_lib = getattr(self.answer, "__module__", "").startswith("mistakes_")
        return as_a_students(self.answer) if from_lib else self.answer


def as_a_students(fn):
    """A function of lib as if it stood elsewhere: the logs then see its lines, and ranks
    get it by value."""
    inside = lambda code: code.replace(
        co_filename=FILE,
        co_consts=tuple(inside(c) if isinstance(c, types.CodeType) else c for c in code.co_consts),
    )
    made = types.FunctionType(
        inside(fn.__code__), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__
    )
    made.__module__, made.__kwdefaults__ = "a_mistake", fn.__kwdefaults__
    return made


def file_of(module) -> Path:
    """The file of the known mistakes of the module's exercise; it need not exist."""
    return HERE / module.__name__.split(".")[2] / f"mistakes_{module.EXERCISE.name}.py"


@functools.cache
def loaded(path: Path):
    """The file as a module, under its own name."""
    spec = util.spec_from_file_location(path.stem, path)
    sys.modules[path.stem] = module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def mistakes_of(exercise, module) -> tuple[Mistake, ...]:
    """Those of one function of the module's exercise."""
    path = file_of(module)
    known = loaded(path).MISTAKES if path.exists() else ()
    return known.get(exercise.name, ()) if isinstance(known, dict) else known


def answers_of(exercise, module) -> tuple[Mistake, ...]:
    """The wrong answers to one function of the module's exercise, each with its hint. What is
    judged side by side is recognised by them as well, except for what draws lots, because that
    leaves another fingerprint each time."""
    path = file_of(module).with_name(f"answers_{module.EXERCISE.name}.py")
    wrong = loaded(path).WRONG if path.exists() else {}
    wrong = wrong.get(exercise.name, {}) if len(module.EXERCISE.parts) > 1 else wrong
    by_lot = getattr(loaded(path), "DRAWS_LOTS", ()) if wrong else ()
    return tuple(Mistake(hint, fn) for fn, hint in wrong.items() if fn not in by_lot)


def table_of(exercise, module) -> dict | None:
    """What ships: the hash of the sources, and {fingerprint: hints}; None without mistakes."""
    mistakes = mistakes_of(exercise, module)
    if isinstance(exercise.measure, SideBySide):
        mistakes += answers_of(exercise, module)
    if not mistakes:
        return None
    prints = {}
    known = {hint.name for hint in exercise.hints} | TOLD_WITHOUT
    for mistake, outcome in zip(mistakes, _verdicts(exercise, mistakes), strict=True):
        if mistake.hint not in known:
            raise ValueError(
                f"{exercise.name}: the mistake {mistake.hint!r} has no sentence and is no hint of "
                f"it"
            )
        if outcome.passed:
            raise ValueError(
                f"{exercise.name}: the mistake {mistake.hint!r}, {mistake.answer}, passes the check"
            )
        if not outcome.problem or outcome.problem.kind in ("built-in", "unreadable"):
            if mistake.hint in TOLD_WITHOUT:
                continue
            raise ValueError(
                f"{exercise.name}: the mistake {mistake.hint!r} fails otherwise: {outcome.message}"
            )
        claim = next(one for one in exercise.claims if outcome.message.startswith(f"{one.name}: "))
        for one in fingerprints.all_of(claim, outcome.problem):
            names = prints.setdefault(one, [])
            if mistake.hint not in names:
                names.append(mistake.hint)
    return {"source": source_of(exercise, module), "prints": dict(sorted(prints.items()))}


def by_condition(exercise, module):
    """(the name of a known mistake, the hint that a condition alone gives it, or None) of each."""
    known = mistakes_of(exercise, module) + answers_of(exercise, module)
    for mistake, outcome in zip(known, _verdicts(exercise, known), strict=True):
        if outcome.problem:
            yield mistake.hint, fingerprints.by_condition(exercise, outcome.problem)


def judged_together(exercise, answers) -> list[Outcome]:
    """The Outcome of each answer, as the parts of a Bundle are judged: in one launch, and one more
    for each failure."""
    if len(answers) == 1:
        return [evaluate(exercise, answers[0])]
    parts = tuple(
        replace(exercise, name=f"{exercise.name} {number}") for number in range(len(answers))
    )
    return evaluate(Bundle(exercise.name, parts), tuple(answers)).parts


def _verdicts(exercise, mistakes):
    """The Outcome of each: judged together, in one launch, but alone if its run failed, as a
    student's would."""
    made = [mistake.made(exercise.reference) for mistake in mistakes]
    together = (
        judged_together(exercise, made) if exercise.worlds and len(made) > 1 else [None] * len(made)
    )
    for seen, answer in zip(together, made, strict=True):
        is_clear = seen and not seen.passed and seen.problem and "failed" not in seen.problem.facts
        yield seen if is_clear else evaluate(exercise, answer)


def source_of(exercise, module) -> str:
    """The hash of all the code that a table depends on. Layout, comments, docstrings and
    imports do not count."""
    paths: set[Path] = {CHECK / "failure.py"}
    _with_imports(Path(module.__file__), paths)
    _with_imports(file_of(module), paths)
    if isinstance(exercise.measure, SideBySide):
        _with_imports(file_of(module).with_name(f"answers_{module.EXERCISE.name}.py"), paths)
    functions = [exercise.reference, fingerprints.all_of, fingerprints.of, fingerprints.print_of]
    texts = [
        *(_text(path) for path in sorted(paths)),
        *(textwrap.dedent(inspect.getsource(fn)) for fn in functions),
    ]
    return hashlib.sha256("\0".join(map(_code, texts)).encode()).hexdigest()[:16]


def _with_imports(path, found):
    """Add the file, if there is one, and the files of lib.check that it imports, and theirs."""
    if path in found or path in NOT_IN_PRINTS or not path.exists():
        return
    found.add(path)
    for imported in _imports(path):
        _with_imports(imported, found)


@functools.cache
def _imports(path):
    """Where the modules are that the file imports from lib.check."""
    files = []
    for node in ast.parse(_text(path)).body:
        module = getattr(node, "module", None) or ""
        if isinstance(node, ast.ImportFrom) and f"{module}.".startswith("lib.check."):
            folder = CHECK.parent.parent.joinpath(*module.split("."))
            names = (folder, *(folder / alias.name for alias in node.names))
            files += [name.with_suffix(".py") for name in names]
    return files


@functools.cache
def _code(text):
    """The syntax tree as text, the same on each Python: without docstrings and imports, and
    without empty fields."""

    def tree(node):
        if isinstance(node, list):
            return f"[{', '.join(tree(one) for one in node if not left_out(one))}]"
        if not isinstance(node, ast.AST):
            return repr(node)
        # where an f-string's format ends in {}, Python 3.12.1 adds an empty text
        if isinstance(node, ast.JoinedStr):
            node.values = [one for one in node.values if getattr(one, "value", None) != ""]
        fields = (
            (name, value)
            for name, value in ast.iter_fields(node)
            if value is not None and value != []
        )
        return (
            f"{type(node).__name__}({', '.join(f'{name}={tree(value)}' for name, value in fields)})"
        )

    def left_out(node):
        text = (
            node.value.value
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            else None
        )
        return isinstance(text, str) or isinstance(node, (ast.Import, ast.ImportFrom))

    return tree(ast.parse(text))


@functools.cache
def _text(path):
    return path.read_text(encoding="utf-8")


def stale(exercises_and_modules) -> list[str]:
    """The exercises whose table was made of other sources than there are now."""
    found = []
    for exercise, module in exercises_and_modules:
        if mistakes_of(exercise, module) and fingerprints.table(exercise).get(
            "source"
        ) != source_of(exercise, module):
            found.append(exercise.name)
    return found


def write(lab: str, tables: dict[str, dict]) -> None:
    """Put these tables into the lab's file; the others in it stay."""
    path = fingerprints.FOLDER / f"{lab}.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.parent.mkdir(exist_ok=True)
    text = json.dumps(dict(sorted((before | tables).items())), indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
    fingerprints.tables.cache_clear()
