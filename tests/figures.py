"""What every lab's tests of figures ask of a figure, and how they look behind its picture."""

import json

from lib.plots import style


def check_page(figure, again):
    """It fits a notebook's page, has words for who cannot see it, and `again`, of the same data, is
    the same bytes."""
    assert figure.png == again.png and figure.png.startswith(b"\x89PNG")
    assert figure.width <= 8 and figure.height <= 4  # inches
    assert len(figure.alt) > 120
    json.dumps(figure._repr_mimebundle_())


def behind(draw, monkeypatch):
    """(figure, title, caption, alt) that draw() would make a picture of."""
    kept = []
    monkeypatch.setattr(style, "finish", lambda *parts: kept.append(parts))
    draw()
    return kept[0]
