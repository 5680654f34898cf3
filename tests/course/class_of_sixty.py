"""A class of 60: answers of tests/check to three exercises of Lab 0, and more than a third broken
or hostile.

    python tests/course/class_of_sixty.py FOLDER
        makes FOLDER/course (a lab of three exercises) and FOLDER/submissions

The same number gives the same class.
"""

import copy
import importlib.util
import inspect
import json
import random
import sys
from pathlib import Path

import own_processes

from lib.course import build, notebook

LAB = "lab0_short"
# without ranks, without, on ranks
EXERCISES = {"model_state_bytes": 6, "training_days": 4, "send_recv": 16}
NEEDED = {
    "here",
    "setup",
    *(f"{name.replace('_', '-')}-{kind}" for name in EXERCISES for kind in ("answer", "check")),
}
LEFT = own_processes.long_sleep()  # seconds that what is left behind sleeps: its name


def course(root):
    """Write the lab of the three exercises into `root`; returns its unsolved notebook."""
    nb = notebook.read(notebook.solution_path(notebook.ROOT, "lab0_concepts"))
    nb.cells = [cell for cell in nb.cells if cell.id in NEEDED]
    notebook.write(nb, notebook.solution_path(root, LAB))
    build.build(root, LAB)
    return notebook.read(notebook.lab_path(root, LAB))


def answers(name):
    """({right answer: source}, {wrong answer: source}) of tests/check, for an exercise."""
    path = Path(__file__).parents[1] / "check" / "lab0" / f"answers_{name}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    found = [{fn.__name__: source(fn, name) for fn in fns} for fns in (module.RIGHT, module.WRONG)]
    return [{answer: text for answer, text in one.items() if text} for one in found]


def source(fn, name):
    """An answer cell with `fn`, and the numbers and functions of its module that it uses; "" if it
    uses more of that."""
    module, mine, todo = inspect.getmodule(fn), {}, [fn]
    while todo:
        names = set(todo.pop().__code__.co_names) & set(vars(module)) - {"dist", "torch"}
        for one in sorted(names - mine.keys() - {fn.__name__}):
            mine[one] = vars(module)[one]
            todo += [mine[one]] * inspect.isfunction(mine[one])
    if not all(isinstance(value, int) or inspect.isfunction(value) for value in mine.values()):
        return ""
    used = "".join(
        f"{one} = {value}\n" if isinstance(value, int) else f"{inspect.getsource(value)}\n\n"
        for one, value in mine.items()
    )
    text = inspect.getsource(fn)
    if fn.__name__ in fn.__code__.co_names:  # it calls itself
        return f"{used}{text}\n\n{name} = {fn.__name__}"
    return used + text.replace(f"def {fn.__name__}(", f"def {name}(", 1)


def days(*lines, before=""):
    """A right training_days that does this first."""
    body = "".join(
        f"    {line}\n"
        for line in [*lines, "operations = (8 if recompute else 6) * parameters * tokens"]
    )
    header = "def training_days(parameters, tokens, gpus, flops_per_gpu, recompute):"
    return (
        f"import os, time\n{before}\n{header}\n{body}    return operations / (gpus * "
        f"flops_per_gpu) / 86400"
    )


def reads(*paths):
    return days(
        f"found = [path for path in {[str(path) for path in paths]!r} if os.path.isfile(path)]",
        "assert not found, [open(path).read(99) for path in found]",
    )


def hostile(folder, root, out):
    """{what it does: (its training_days, does that keep its 4 points?)}: it is prevented,
    or costs them."""
    mine = "import pathlib, socket, subprocess"
    tries = lambda line: [
        "try:",
        f"    {line}",
        "except OSError:",
        "    pass",
        "else:",
        "    raise AssertionError('done')",
    ]
    theirs = [f"open({path!r}, 'w')" for path in (str(folder / "mine.txt"), "/tmp/mine.txt")]
    return {
        "reads_the_solutions": (reads(*(root / "solutions" / f"{lab}.ipynb" for lab in (LAB,
        "lab0_concepts"))), True),
        "reads_the_history": (days("assert not os.path.exists(path)",
        before=f"path = {str(root / '.git')!r}"), True),
        "reads_another_submission": (reads(folder / "student_00.ipynb",
        folder / "student_01.ipynb"), True),
        "reads_earlier_results": (reads(out / "students" / "student_00.json", out / "points.csv"),
        True),
        "writes_outside": (days(*tries(theirs[0]), *tries(theirs[1])), True),
        "deletes_its_notebook": (days("for path in pathlib.Path().glob('*.ipynb'): path.unlink()",
        before=mine), True),
        "connects": (days(*tries("socket.create_connection(('192.0.2.1', 80), timeout=3)"),
        before=mine), True),
        "forks_on_and_on": (days("for _ in range(2000):", "    if os.fork() == 0: time.sleep(60)"),
        False),
        "kills_the_grader": (days("os.kill(os.getppid(), 9)", "os.kill(-1, 9)"), False),
        "leaves_a_process": (
            days(f"subprocess.Popen(['sleep', {LEFT!r}], start_new_session=True, env={{}})",
                 before=mine), True
        ),
        "fills_the_disk": (days("with open('big', 'wb') as file:",
        "    while True: file.write(b'x' * 10**6)"), False),
        "prints_100_MB": (days("for _ in range(1000): print('x' * 100_000)"),
        True),  # the check keeps it to itself
        "patches_the_check": (
            days(before="import lib.check.framework\nlib.check.framework._score = lambda *_: '20'"),
            True
        ),
        "exits": (days("exit()"), False),
        "exits_at_once": (days(before="exit()"), False),
        "leaves_at_once": (days("os._exit(0)"), False),
        "loops": (days("while True: pass"), False),
        "sleeps": (days("time.sleep(100_000)"), False),
    }  # fmt: skip


def broken(unsolved, right):
    """{what became of it: the bytes of the file}."""
    whole = notebook.to_bytes(right)
    renamed, emptied = copy.deepcopy(right), copy.deepcopy(right)
    for number, cell in enumerate(renamed.cells):
        cell.id, cell.metadata = f"cell-{number}", type(cell.metadata)()
    emptied.cells = [cell for cell in emptied.cells if cell.id != "send-recv-answer"]
    other = notebook.lab_path(notebook.ROOT, "lab1_data_parallel").read_bytes()
    return {
        "truncated": whole[: len(whole) // 2], "empty": b"", "not_json": b"%PDF-1.7",
        "of_another_lab": other,
        "renamed": notebook.to_bytes(renamed), "deleted": notebook.to_bytes(emptied),
        "huge": whole + b" " * 25_000_000,
    }  # fmt: skip


def filled(unsolved, **sources):
    """The lab with these answers, by exercise."""
    nb = copy.deepcopy(unsolved)
    for name, text in sources.items():
        next(
            cell for cell in nb.cells if cell.id == f"{name.replace('_', '-')}-answer"
        ).source = text
    return nb


def hand_in(folder, unsolved, root, out, students=60, seed=28):
    """Write the class into `folder`; returns {student: points per exercise, or None where they are
    not known here}."""
    draw = random.Random(seed)
    there = {name: answers(name) for name in EXERCISES}
    right = filled(unsolved, **{name: next(iter(there[name][0].values())) for name in EXERCISES})
    files, points = {}, {}
    for what, (text, keeps) in hostile(folder, root, out).items():
        files[what] = notebook.to_bytes(filled(right, training_days=text))
        points[what] = [6, 4 * keeps, 16 * (what != "fills_the_disk")]  # with its ranks' room, too
    for what, data in broken(unsolved, right).items():
        files[what] = data
        points[what] = {"renamed": [6, 4, 16], "deleted": [6, 4, 0]}.get(what, [0, 0, 0])
    for number in range(students - len(files)):
        chosen = {
            name: draw.choice([*kinds[draw.random() < 0.5].items()])
            for name, kinds in there.items()
        }
        student, sources = (
            f"student_{number:02}",
            {name: text for name, (_, text) in chosen.items()},
        )
        files[student] = notebook.to_bytes(filled(unsolved, **sources))
        points[student] = [
            EXERCISES[name] if c[0] in there[name][0] else None for name, c in chosen.items()
        ]
    folder.mkdir(parents=True, exist_ok=True)
    for student, data in files.items():
        (folder / f"{student}.ipynb").write_bytes(data)
    return points


if __name__ == "__main__":
    at = Path(sys.argv[1]).resolve()
    known = hand_in(at / "submissions", course(at / "course"), at / "course", at / "report")
    print(json.dumps(known, indent=1))
