"""The model of a published row: its own numbers, completed by what data/models.csv knows, or
refused.

Columns: model params_b layers hidden heads kv_heads ffn vocab seq experts topk, and any other of
data/models.csv. An empty cell is what the table's model of that name has; without one, a vocabulary
of 51,200, (P - V h) / 12 h^2 layers to the nearest multiple of the stages, and a mixture without
shared expert, dense first layers or latent attention. A mixture is refused where experts, topk or
the width of an expert is missing, and any row whose columns no transformer has, or do not make the
parameters that it states, within 30 %. experts of 0 or 1 is a dense model. Under latent attention
kv_heads says nothing of memory.
"""

from dataclasses import replace

from lib.cost import shapes

SIZES = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "experts", "topk")
EXTRAS = (
    "head_dim", "gated", "tied", "shared_ffn", "dense_layers", "dense_ffn", "q_rank", "kv_rank",
    "rope_dim", "window", "latent", "biased",
)  # fmt: skip


class Unpredictable(ValueError):
    """A row that lacks what a prediction needs; the text says what."""


def number(row, key, default=None):
    """A cell as int or float; `default` if it is empty. Raises Unpredictable for anything else."""
    text = str(row.get(key) if row.get(key) is not None else "").strip()
    if not text:
        return default
    try:
        value = float(text)
        return int(value) if value == int(value) else value
    except (ValueError, OverflowError):
        raise Unpredictable(f"{key} is {text!r}, not a number") from None


def whole(row, key, default=None):
    """A cell as a whole number above 0. Raises Unpredictable for another."""
    value = number(row, key, default)
    if value is not None and (not isinstance(value, int) or value < 1):
        raise Unpredictable(f"{key} is {value}, not a whole number above 0")
    if value is not None and value > 10**9:
        raise Unpredictable(f"{key} is {value:.3g}: at most 1,000,000,000 are modelled")
    return value


def known_model(row):
    """The Model of data/models.csv whose name the row's model has, or begins with; None if no name
    fits.

    A row with another width is another model, whatever it is called; one with other layers is a
    part of it.
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
    """The Model of a row: its own numbers, and beside them what data/models.csv knows. Raises
    Unpredictable.

    A row may also have columns of the other names in data/models.csv (shared_ffn, dense_layers,
    kv_rank ...).
    """
    name, base = row["model"], known_model(row)
    said = {key: number(row, key) for key in (*SIZES, *EXTRAS, "seq")}
    said = {key: value for key, value in said.items() if value is not None}
    if "seq" not in said:
        raise Unpredictable("seq is empty: the sequence length decides the step")
    # one that all tokens visit is a dense MLP
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
    """The Model of a row that data/models.csv does not know. Raises ValueError."""
    sizes = {"vocab": 51200, **said}
    return shapes.shape(name, **{"layers": _layers(row, name, sizes), **sizes})


def _part_of(base, name, said):
    """`base` with a row's own numbers. Raises ValueError."""
    # a part of the model, measured: one dense layer, if it has any
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
    """`model`, unless the row says that it is another size; of a part of `base` it may say the
    whole's. Raises Unpredictable."""
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
    """Layers stated, or those that make params_b parameters with the other sizes, a
    multiple of the stages."""
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
