"""The model of a published row: its own numbers, completed by what data/models.csv knows, or refused.

Columns: model params_b layers hidden heads kv_heads ffn vocab seq experts topk, and any other of data/models.csv. An
empty cell is what the table's model of that name has; without one, a vocabulary of 51,200, (P - V h) / 12 h^2 layers to
the nearest multiple of the stages, and a mixture without shared expert, dense first layers or latent attention. A
mixture is refused where experts, topk or the width of an expert is missing, or where its columns do not make the
parameters that the row states.
"""

from dataclasses import replace

from lib.cost import shapes

SIZES = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "experts", "topk")
EXTRAS = (
    "head_dim", "gated", "tied", "shared_ffn", "dense_layers", "dense_ffn", "q_rank", "kv_rank", "rope_dim", "window",
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
    return value


def known_model(row):
    """The Model of data/models.csv whose name the row's model has, or begins with; None if no name fits.

    A row with another width is another model, whatever it is called; one with other layers is a part of it.
    """
    name = row["model"].lower()
    fits = [known for known in shapes.known() if name == known or name.startswith(known + "-")]
    base = shapes.known()[max(fits, key=len)] if fits else None
    if base and any(whole(row, key, getattr(base, key)) != getattr(base, key) for key in ("hidden", "heads")):
        return None
    return base


def model_of(row):
    """The Model of a row: its own numbers, and beside them what data/models.csv knows. Raises Unpredictable.

    A row may also have columns of the other names in data/models.csv (shared_ffn, dense_layers, kv_rank ...).
    """
    name, seq, base = row["model"], whole(row, "seq"), known_model(row)
    if seq is None:
        raise Unpredictable("seq is empty: the sequence length decides the step")
    said = {key: whole(row, key) for key in SIZES} | {key: number(row, key) for key in EXTRAS}
    said = {key: value for key, value in said.items() if value is not None}
    hidden, heads = (said.get(key) or getattr(base, key, None) for key in ("hidden", "heads"))
    if hidden is None or heads is None:
        raise Unpredictable(f"model {name!r}: hidden and heads are empty, and data/models.csv does not have it")
    if heads > hidden:
        raise Unpredictable(f"{heads} heads in a hidden size of {hidden}: each would have less than one number")
    _check_mixture(name, said, base)
    if base is None:
        sizes = {"layers": None, "vocab": 51200, "hidden": hidden, "heads": heads, **said}
        sizes["layers"] = sizes["layers"] or _layers(row, hidden, sizes["vocab"])
        return _weighed(shapes.shape(name, seq=seq, **sizes), row)
    if said.get("layers", base.layers) != base.layers:  # a part of the model, measured: one dense layer, if it has any
        said.setdefault("dense_layers", min(1, base.dense_layers))
    return replace(base, name=name, seq=seq, **said)


def _check_mixture(name, said, base):
    """Raise Unpredictable where a mixture is named but not described."""
    experts, topk = (said.get(key) or getattr(base, key, 0) for key in ("experts", "topk"))
    if bool(experts) != bool(topk) or topk > experts:
        raise Unpredictable(
            f"model {name!r}: experts is {experts or 'empty'} and topk {topk or 'empty'}: a mixture needs both, and "
            f"topk of at most experts"
        )
    if experts and "ffn" not in said and not (base and base.experts):
        raise Unpredictable(f"model {name!r}: ffn is empty: it should be the width of one of the {experts} experts")


def _weighed(model, row):
    """`model`, unless it is a mixture that the row says is another size. Raises Unpredictable."""
    billions, ours = number(row, "params_b"), model.parameters / 1e9
    if model.experts and billions and not 0.75 < ours / billions < 1.33:
        raise Unpredictable(
            f"model {model.name!r}: its columns make {ours:.0f}B parameters, and params_b says {billions}: something "
            f"is left out; add columns ({', '.join(EXTRAS)}), or a row to lib/cost/data/models.csv"
        )
    return model


def _layers(row, hidden, vocab):
    billions, p = number(row, "params_b"), whole(row, "pp", 1)
    if billions is None:
        raise Unpredictable("layers and params_b are both empty")
    # P = 12 L h^2 + V h
    return max(1, round((billions * 1e9 - vocab * hidden) / (12 * hidden**2) / p)) * p
