"""What every lab's tests of figures ask of a figure, and how they look behind its picture."""

import importlib
import json


def check_page(figure, again):
    """It fits a notebook's page, has words for who cannot see it, and `again`, of the same data, is the same bytes."""
    assert figure.png == again.png and figure.png.startswith(b"\x89PNG")
    assert figure.width <= 8 and figure.height <= 4  # inches
    assert len(figure.alt) > 120
    json.dumps(figure._repr_mimebundle_())


def behind(draw, room, monkeypatch):
    """(figure, title, caption, alt) that draw() would make a picture of, in lib.plots.<room>."""
    kept = []
    module = importlib.import_module(f"lib.plots.{room}")
    monkeypatch.setattr(module, "finish", lambda *parts: kept.append(parts))
    draw()
    return kept[0]
