"""Reads the model of a published row. Few rows state all sizes, so the missing ones are taken from
the model of the same name in data/models.csv, or assumed. A row that leaves too much open is
refused.

Columns: model params_b layers hidden heads kv_heads ffn vocab seq experts topk, and any other of
data/models.csv. If that table has no model of the row's name, we assume for empty cells

    vocab   51,200
    layers  (P - V h) / 12 h^2, rounded to a multiple of the stages; P parameters, vocabulary V,
            hidden size h. This is not possible for a mixture of experts
    others  those of `lib.cost.shapes.shape`: no shared expert, no dense first layers, no latent
            attention

A mixture is refused if experts, topk or the width of an expert is missing. Any row is refused if no
transformer has such sizes, or if its sizes give less than 0.7 or more than 1 / 0.7 times the
parameters that it states. With 0 or 1 experts a model is dense. Under latent attention kv_heads
does not affect memory.
"""

from dataclasses import replace

from lib.cost import shapes

SIZES = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "experts", "topk")
EXTRAS = (
    "head_dim", "gated", "tied", "shared_ffn", "dense_layers", "dense_ffn", "q_rank", "kv_rank",
    "rope_dim", "window", "latent", "biased",
)  # fmt: skip


class Unpredictable(ValueError):
    """Raised for a row that cannot be predicted; the message says what is missing or wrong."""


def number(row, key, default=None):
    """The int or float in a cell; `default` if it is empty. Raises Unpredictable for other text."""
    text = str(row.get(key) if row.get(key) is not None else "").strip()
    if not text:
        return default
    try:
        value = float(text)
        return int(value) if value == int(value) else value
    except (ValueError, OverflowError):
        raise Unpredictable(f"{key} is {text!r}, not a number") from None


def whole(row, key, default=None):
    """The int in a cell, from 1 to 10^9; `default` if it is empty. Raises Unpredictable for any
    other number or text."""
    value = number(row, key, default)
    if value is not None and (not isinstance(value, int) or value < 1):
        raise Unpredictable(f"{key} is {value}, not a whole number above 0")
    if value is not None and value > 10**9:
        raise Unpredictable(f"{key} is {value:.3g}: at most 1,000,000,000 are modelled")
    return value


def known_model(row):
    """The Model of data/models.csv that the row's model is named after: the row has the same name,
    or that name with a suffix after a hyphen, such as deepseek-v3-4l. None if there is no such
    model.

    A row whose hidden size or heads differ is another model, whatever it is called. With a
    different number of layers it counts as a part of the model.
    """
    name = row["model"].lower()
    fits = [known for known in shapes.known() if name == known or name.startswith(known + "-")]
    base = shapes.known()[max(fits, key=len)] if fits else None
    if base and any(
        whole(row, key, getattr(base, key)) != getattr(base, key) for key in ("hidden", "heads")
    ):
        return None
    return base


def model_of(row):
    """The Model of a row: its own sizes, and for empty cells those of data/models.csv. Raises
    Unpredictable.

    Besides the columns of data/rows.csv, a row may have any other column of data/models.csv
    (shared_ffn, dense_layers, kv_rank ...).
    """
    name, base = row["model"], known_model(row)
    said = {key: number(row, key) for key in (*SIZES, *EXTRAS, "seq")}
    said = {key: value for key, value in said.items() if value is not None}
    if "seq" not in said:
        raise Unpredictable("seq is empty: the sequence length decides the step")
    # a single expert, to which all tokens are routed, is a dense MLP
    if said.get("experts") in (0, 1) and said.get("topk", 0) in (0, 1):
        said |= {"experts": 0, "topk": 0}
    missing = [key for key in ("hidden", "heads") if not (base or key in said)]
    if missing:
        raise Unpredictable(
            f"model {name!r}: {' and '.join(missing)} empty, and data/models.csv does not have it"
        )
    mixture, known_mixture = (
        said.get("experts", getattr(base, "experts", 0)),
        bool(base and base.experts),
    )
    if "ffn" not in said and bool(mixture) != known_mixture:
        wide = f"the width of one of the {mixture} experts" if mixture else "the width of the MLP"
        raise Unpredictable(f"model {name!r}: ffn is empty: it should be {wide}")
    try:
        return _weighed(_part_of(base, name, said) if base else _new(row, name, said), row, base)
    except ValueError as why:
        raise Unpredictable(str(why)) from None


def _new(row, name, said):
    """The Model of a row whose model is not in data/models.csv. Raises ValueError."""
    sizes = {"vocab": 51200, **said}
    return shapes.shape(name, **{"layers": _layers(row, name, sizes), **sizes})


def _part_of(base, name, said):
    """`base` with a row's own sizes. Raises ValueError."""
    # a part of the model was measured: assume that it has one dense layer, if the model has any
    if said.get("layers", base.layers) != base.layers:
        said.setdefault("dense_layers", min(1, base.dense_layers))
    if said.get("dense_layers") == 0:
        said.setdefault("dense_ffn", 0)
    if said.get("kv_rank") == 0:
        said = {"q_rank": 0, "rope_dim": 0, **said}
    model = replace(base, name=name, **said)
    if why := model.problem():
        raise ValueError(f"model {name!r}: {why}")
    return model


def _weighed(model, row, base):
    """`model`, if it has about as many parameters as the row states. A row about a part of `base`
    may state the number of the full model. Raises Unpredictable if neither fits."""
    billions = number(row, "params_b")
    sizes = [each.parameters / 1e9 for each in (model, base) if each]
    if billions is not None and not any(0.7 * billions < ours < billions / 0.7 for ours in sizes):
        raise Unpredictable(
            f"model {model.name!r}: its columns make {sizes[0]:.3g}B parameters, and params_b says "
            f"{billions}: something is left out; add columns ({', '.join(EXTRAS)}), or a row to "
            f"lib/cost/data/models.csv"
        )
    return model


def _layers(row, name, sizes):
    """The number of layers, if the row states it; otherwise the multiple of the pipeline's stages
    for which all sizes together give about params_b parameters. Raises Unpredictable."""
    if "layers" in sizes:
        return sizes["layers"]
    billions, p = number(row, "params_b"), whole(row, "pp", 1)
    if billions is None:
        raise Unpredictable("layers and params_b are both empty")
    if sizes.get("experts"):
        raise Unpredictable(
            f"model {name!r}: layers is empty: params_b does not tell the layers of a mixture"
        )
    # P = 12 L h^2 + V h
    hidden = whole(sizes, "hidden")
    return max(1, round((billions * 1e9 - sizes["vocab"] * hidden) / (12 * hidden**2) / p)) * p
