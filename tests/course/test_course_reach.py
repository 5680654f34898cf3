"""The cells of a lab that an answer can reach are found; only those run again in
the unsolved lab."""

import re

import nbformat
import pytest

from lib.course import notebook, reach

ANSWER = {
    "grade": False,
    "solution": True,
    "locked": False,
    "schema_version": 3,
    "task": False,
    "grade_id": "f",
}


def cells_kept(*sources, through_use=True):
    """{place: source} of those of `sources` that are kept in a notebook which has an
    answer, f, before them."""
    cells = [nbformat.v4.new_code_cell(source, id=f"cell-{i}") for i, source in enumerate(sources)]
    first = nbformat.v4.new_code_cell(
        "def f(x):\n    return x", id="answer", metadata={"nbgrader": ANSWER}
    )
    found = reach.reached(nbformat.v4.new_notebook(cells=[first, *cells]), through_use)
    assert found.pop(0).id == "answer"
    return {int(cell.id.split("-")[1]): cell.source for cell in found}


def kept(*sources):
    return list(cells_kept(*sources))


@pytest.mark.parametrize(
    ("sources", "want"),
    [
        (["from lib import plots\nn = 100", "losses = train(f, n)",
          "plots.curve(losses)", "plots.gpus(4)"],
         [0, 1, 2]),
        (["def g(x):\n    return f(x)", "y = g(2)", "print(3)"], [0, 1]),
        (["class G:\n    def run(self):\n        return f(1)", "G().run()"], [0, 1]),
        (["y = [f(i) for i in range(3)]", "print(y)"], [0, 1]),
        (["y = f(2)", "y = 3", "print(y)"], [0]),  # bound anew without f
        (["y = f(2)", "if y:\n    y = 3", "print(y)"], [0, 1, 2]),
        # a loop may run no time
        (["y = f(2)", "for y in range(2):\n    pass", "print(y)"], [0, 2, 1]),
        (["y = f(2)", "y = 4\nprint(y)"], [0]),  # binds y before it reads it
        (["y = f(2)", "for y in [1]:\n    print(y)"], [0]),
        (["y = f(2)", "y += 1"], [0, 1]),
        (["seen = []", "seen.append(f(2))", "print(seen)"], [0, 1, 2]),
        (["seen = {}", "seen['a'] = f(2)", "print(seen)"], [0, 1, 2]),
        # nobody changes a module
        (["import numpy as np\nx = 1", "np.seterr(all=f(2))", "np.zeros(2)"], [0, 1]),
        (["import numpy as np", "np.seterr(all=2)", "np.zeros(f(2))"], [0, 2]),
        # what a kept cell needs
        (["seen = []", "seen.append(1)", "seen.append(2)", "print(seen, f)"], [0, 1, 2, 3]),
        (["x = 1", "x = 2", "print(x, f)"], [1, 2]),
        (["with open('log') as log:\n    f(log)", "print(log)"], [0, 1]),
        (["f = 3", "print(f)"], []),
        (["lambda f: f(1)"], []),  # its own parameter
        (["%matplotlib inline\nprint(f(1))"], [0]),
    ],
)  # fmt: skip
def test_what_reads_the_answer_or_what_was_made_with_it_is_kept_and_what_that_needs(sources, want):
    assert kept(*sources) == sorted(want)


def test_of_what_reads_an_answer_by_use_alone_the_use_can_be_left():
    sources = ["n = 3\ny = use(f)(n)", "print(y)", "z = f(2), use(f)(3)", "print(z)", "print(4)"]
    assert list(cells_kept(*sources)) == [0, 1, 2, 3]
    assert cells_kept(*sources, through_use=False) == {0: "use(f)", 2: sources[2], 3: sources[3]}
    needed = [sources[0], "print(f, y)"]  # what reads f itself has to have what use(f) made
    assert cells_kept(*needed, through_use=False) == dict(enumerate(needed))
    inside = "%matplotlib inline\nruns = [launch.run(train, make) for make in (None, use(f))]"
    assert cells_kept(inside, "plots.curve(runs)", through_use=False) == {0: "use(f)"}
    assert cells_kept("y = use(f, 3)", "f = 3", "use(f)", through_use=False) == {0: "y = use(f, 3)"}


def test_a_check_and_set_up_are_kept_whatever_they_read_and_a_check_hands_nothing_on():
    role = ANSWER | {"solution": False, "locked": True}
    setup = nbformat.v4.new_code_cell("import math", id="setup", metadata={"nbgrader": role})
    check = nbformat.v4.new_code_cell(
        "check.f(f)", id="check", metadata={"nbgrader": role | {"grade": True}}
    )
    rest = nbformat.v4.new_code_cell("check.points(0)", id="rest")
    answer = nbformat.v4.new_code_cell("def f(): pass", id="answer", metadata={"nbgrader": ANSWER})
    found = reach.reached(nbformat.v4.new_notebook(cells=[setup, answer, check, rest]))
    assert [cell.id for cell in found] == ["setup", "answer", "check"]


@pytest.mark.parametrize("lab", notebook.labs(notebook.ROOT))
def test_in_each_lab_all_cells_that_name_an_answer_are_kept_and_some_cells_are_left_out(lab):
    nb = notebook.read(notebook.lab_path(notebook.ROOT, lab))
    ids = {cell.id for cell in reach.reached(nb)}
    named = [
        name
        for e in notebook.exercises(nb)
        for a in e.answers
        for name in re.findall(r"(?m)^(?:def|class) (\w+)", a.source)
    ]
    code = [cell for cell in nb.cells if cell.cell_type == "code"]
    assert named and len(ids) < len(code)
    for cell in code:
        assert cell.id in ids or not re.search(rf"\buse\(({'|'.join(named)})\)", cell.source), (
            cell.id
        )
