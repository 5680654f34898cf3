"""What a class's grader holds stays what it is, however many notebooks it has graded."""

import sys
import time

import class_of_sixty
import psutil
import pytest
from toy_lab import toy_notebook

from lib.course import build, notebook

pytestmark = pytest.mark.slow
EVERY = 10  # notebooks between two samples
WARM = 2  # samples at the beginning that are left out
GROWTH = 8 * 2**20  # bytes that a process may hold more at the end than at the beginning


def one_exercise(root, nb, lab, kept):
    """A course whose only lab has one exercise: the cells `kept` of `nb`. Returns the lab's
    solution, to hand in."""
    nb.cells = [cell for cell in nb.cells if cell.id in kept]
    notebook.write(nb, notebook.solution_path(root, lab))
    build.build(root, lab)
    return notebook.to_bytes(nb)


def without_ranks(root):
    return one_exercise(root, toy_notebook(), "lab9_toy", ("tools", "double", "check-double"))


def on_ranks(root):
    nb = notebook.read(notebook.solution_path(notebook.ROOT, "lab0_concepts"))
    return one_exercise(
        root, nb, class_of_sixty.LAB, ("here", "setup", "send-recv-answer", "send-recv-check")
    )


def below(process, recursive=True):
    try:
        return process.children(recursive)
    except psutil.NoSuchProcess:
        return []


def held(process):
    """(resident bytes, open files); (0, 0) of a process that has ended."""
    try:
        return process.memory_info().rss, process.num_fds()
    except psutil.Error:
        return 0, 0


def samples(process, finished):
    """After every EVERY notebooks: {what: (bytes, open files)} of the grader, and of the largest of
    what ran below it meanwhile, and how many these were at most."""
    found, most, count = [], {}, 0
    while process.poll() is None:
        most["grader"] = held(process)
        started, workers = below(process), {one.pid for one in below(process, recursive=False)}
        count = max(count, len(started))
        for one in started:
            kind = "below" if one.pid not in workers else "worker"
            most[kind] = tuple(map(max, most.get(kind, (0, 0)), held(one)))
        if finished() >= (len(found) + 1) * EVERY:
            found.append({**most, "processes": (0, count)})
            most, count = {}, 0
        time.sleep(0.2)
    return found


@pytest.mark.parametrize(("lab", "notebooks"), [(without_ranks, 300), (on_ranks, 120)])
def test_the_grader_of_many_notebooks_grows_by_nothing(tmp_path, lab, notebooks):
    root, folder, out = (tmp_path / name for name in ("course", "submissions", "out"))
    right = lab(root)
    folder.mkdir()
    for number in range(notebooks):
        (folder / f"student_{number:03}.ipynb").write_bytes(right)
    (name,) = notebook.labs(root)
    command = [
        sys.executable,
        "-m",
        "lib.course",
        "--root",
        root,
        "grade",
        folder,
        "--lab",
        name,
        "--out",
        out,
    ]
    with open(tmp_path / "said", "w+") as said:
        process = psutil.Popen([*command, "--jobs", "2"], stdout=said, stderr=said)
        seen = samples(process, lambda: len([*out.glob("students/*.json")]))
        assert process.wait() == 0, (tmp_path / "said").read_text()[-2000:]
    for number, sample in enumerate(seen):
        words = [
            f"{what} {size / 2**20:.1f} MiB {files}"
            for what, (size, files) in sorted(sample.items())
        ]
        print(EVERY * (number + 1), *words, sep="; ")
    assert len(seen) >= notebooks // EVERY - 1
    for what in ("grader", "worker", "below", "processes"):
        bytes_, files = zip(*(sample[what] for sample in seen[WARM:]), strict=True)
        half = len(bytes_) // 2
        assert (
            max(bytes_[half:]) <= max(bytes_[:half]) + GROWTH
            and max(files[half:]) <= max(files[:half]) + 2
        ), what
