"""The packages of lib and what they import, as a picture: `python -m lib.course packages` writes
lib/packages.png.

A package is a folder of lib, or a file next to the folders. Every package is drawn above those
that it imports. No arrow is drawn where a longer path leads to the same package, but the
description that is stored in the PNG lists all imports.
"""

import ast
import io
import itertools
from collections.abc import Iterator
from pathlib import Path

from .layers import Graph, Layers, reduced

NAME = "packages.png"
TITLE = "A package of lib imports only packages below it"
CAPTION = (
    "An arrow means that the upper package imports the lower one. No arrow is drawn where a longer "
    "path down leads to the same package. An arrow has the colour of the package that imports; a "
    "package with a black frame imports nothing of lib."
)
# In inches: the distance between rows, what each arrow adds to it, the height of a box, and the gap
# between boxes
ROW, ARROW, BOX, GAP = 0.48, 0.014, 0.28, 0.11


def imports_of(path: Path) -> Iterator[str]:
    """The packages of lib that a file imports anywhere, even inside functions. A name may occur
    more than once."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = (
                [f"{node.module}.{alias.name}" for alias in node.names]
                if node.module == "lib"
                else [node.module]
            )
        else:
            continue
        for name in names:
            if name.startswith("lib."):
                yield name.split(".")[1]


def imports(lib: Path) -> Graph:
    """{package: the other packages that it imports} for the folder `lib`. A package is named as in
    that folder, such as "zero" or "cycle.py"."""
    names = {path.stem: path.name for path in lib.iterdir()}
    found: Graph = {}
    for path in sorted(lib.rglob("*.py")):
        package = path.relative_to(lib).parts[0]
        if not package.startswith("__"):
            found.setdefault(package, set()).update(
                {names[other] for other in imports_of(path)} - {package}
            )
    return found


def in_words(imported: Graph) -> str:
    """All imports in words: the description that the PNG carries, and the figure's alt text."""
    told = [
        f"{package} imports {', '.join(sorted(others)) or 'nothing'}"
        for package, others in sorted(imported.items())
    ]
    return f"{TITLE}: {'; '.join(told)}."


def description(path: Path) -> str:
    """The description that a PNG carries; "" if it has none."""
    from PIL import Image

    with Image.open(path) as image:
        image.load()
        return image.text.get("Description", "")


def write(lib: Path) -> bool:
    """Draw the packages of `lib` into its packages.png, unless the description in that file is up
    to date. Returns True if it was written."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    imported, path = imports(lib), lib / NAME
    if path.exists() and description(path) == in_words(imported):
        return False
    info = PngInfo()
    info.add_text("Description", in_words(imported))
    with Image.open(io.BytesIO(picture(imported).png)) as image:
        image.convert("RGB").quantize(128).save(path, pnginfo=info, optimize=True)
    return True


def picture(imported: Graph):
    """Draw these imports. Returns the Drawing."""
    from lib.plots import styled

    return styled(_drawn)(imported)


def _drawn(imported):
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

    from lib.plots import INK, PAPER, finish, rank_color

    layers = Layers(
        reduced(imported), {package: 0.13 + 0.077 * len(package) for package in imported}, GAP
    )
    steps = [ROW + ARROW * sum(len(layers.below[node]) for node in row) for row in layers.rows[1:]]
    heights = [0.0, *itertools.accumulate(steps)]
    y = {node: height for row, height in zip(layers.rows, heights, strict=True) for node in row}
    left = min(x - layers.width[node] / 2 for node, x in layers.x.items()) - 0.05
    right = max(x + layers.width[node] / 2 for node, x in layers.x.items()) + 0.05
    importing = [package for package in sorted(imported) if imported[package]]
    color = dict.fromkeys(imported, INK) | {
        package: rank_color(i) for i, package in enumerate(importing)
    }

    figure = Figure(figsize=(max(6.0, right - left + 0.3), heights[-1] + 1.6))
    axes = figure.add_subplot(xlim=(left, right), ylim=(-BOX, heights[-1] + BOX))
    axes.axis("off")
    for line in layers.lines:
        axes.add_patch(FancyArrowPatch(path=_curve(line, layers.x, y), arrowstyle="-|>",
            mutation_scale=7, lw=1.1,
                                       shrinkA=0, shrinkB=0, color=color[line[0]]))  # fmt: skip
    for package in imported:
        corner = layers.x[package] - layers.width[package] / 2, y[package] - BOX / 2
        axes.add_patch(FancyBboxPatch(corner, layers.width[package], BOX,
            boxstyle="round,pad=0,rounding_size=0.06",
                                      fc=PAPER, ec=color[package], lw=1.3))  # fmt: skip
        axes.text(
            layers.x[package], y[package], package, ha="center", va="center_baseline", size=9.5
        )
    return finish(figure, TITLE, CAPTION, in_words(imported))


def _curve(line, x, y):
    """A curve from the lower edge of the first box to the upper edge of the last. It is vertical
    where it passes a row."""
    from matplotlib.path import Path as Curve

    points, codes = [(x[line[0]], y[line[0]] - BOX / 2)], [Curve.MOVETO]
    for node in line[1:]:
        top, middle = (x[node], y[node] + BOX / 2), (points[-1][1] + y[node] + BOX / 2) / 2
        points += [(points[-1][0], middle), (x[node], middle), top, (x[node], y[node] - BOX / 2)]
        codes += [Curve.CURVE4] * 3 + [Curve.LINETO]
    return Curve(points[:-1], codes[:-1])
