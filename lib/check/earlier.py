"""Keeps mistakes in earlier exercises from costing points in later ones.

    def ring_all_reduce(tensor, group=None):
        chunk = ring_reduce_scatter(tensor, group)      the student's own, which is wrong
        ...

Suppose that an answer fails, and that it calls functions of the student's that have not passed
their own checks. The answer is then judged once more with the course's functions in their place. If
that gives more points, these points count, and the verdict says so. The functions of a Bundle may
call each other, and are judged one by one.
"""

import contextlib
import dataclasses
import inspect
import types

from lib.check.exercise import Bundle


def not_passed(fns, known, passed) -> dict[str, object]:
    """{name: the course's function} for every exercise whose function these answers call, directly
    or through other functions, if the student's version of it has not passed.

    known: {name: Exercise}; passed: {name: the student's function that passed}.
    """
    own = {getattr(fn, "__name__", "") for fn in fns}
    found, seen, todo = {}, set(), [*fns]
    while todo:
        fn = todo.pop()
        if id(fn) in seen:
            continue
        seen.add(id(fn))
        for name, value in _called(fn):
            todo.append(value)
            right = known[name].reference if name in known and name not in own else None
            if right is not None and passed.get(name) is not value:
                found[name] = right
    return found


def functions_of(fn) -> list[types.FunctionType]:
    """The function itself, or the methods of a class."""
    found = vars(fn).values() if inspect.isclass(fn) else [fn]
    return [one for one in found if isinstance(one, types.FunctionType)]


def _called(fn):
    """Yield (name, value) for the student's own functions and classes that a function, or a method
    of a class, uses as globals."""
    for body in functions_of(fn):
        for name in _names(body.__code__):
            value = body.__globals__.get(name)
            is_lib = str(getattr(value, "__module__", "lib.")).startswith(("lib.", "torch"))
            if (inspect.isfunction(value) or inspect.isclass(value)) and not is_lib:
                yield name, value


def _names(code):
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _names(const)


@contextlib.contextmanager
def replaced(fns, right):
    """Within this context, the answers find the course's functions under these names."""
    bodies = [body for fn in fns for body in functions_of(fn)]
    scopes = {id(body.__globals__): body.__globals__ for body in bodies}
    before = [(scope, {n: scope[n] for n in right if n in scope}) for scope in scopes.values()]
    try:
        for scope, theirs in before:
            scope.update({name: right[name] for name in theirs})
        yield
    finally:
        for scope, theirs in before:
            scope.update(theirs)


def allowing(exercise, right):
    """The exercise, changed so that its answers may call these functions of the course."""
    names = tuple(name for fn in right.values() for name in _as_the_ledger_names(fn))
    parts = tuple(dataclasses.replace(p, may_call=(*p.may_call, *names)) for p in exercise.parts)
    return dataclasses.replace(exercise, parts=parts) if isinstance(exercise, Bundle) else parts[0]


def _as_the_ledger_names(fn):
    module = fn.__module__.rpartition(".")[2]
    methods = vars(fn) if inspect.isclass(fn) else [fn.__name__]
    return [f"{module}.{name}" for name in methods]


def note(right) -> str:
    names = " and ".join(sorted(right))
    have = "yours has" if len(right) == 1 else "yours have"
    return f"  (graded with the course's {names}: {have} not passed the check yet)"
