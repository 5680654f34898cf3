"""Known mistakes of split_state_dict, each named after its cause."""

from mistakes import Edit, Mistake, edit

from lib.tensor_parallel import shards

PART, COPY = "part.chunk(tp, dim)[rank]", "tensor.detach().clone()"
JOINED = "torch.cat([part.chunk(tp, dim)[rank] for part in parts], dim)"
DIVIDE = 'divide(size, tp, f"dim {dim} of {name}")'
COLUMNS = ("attention.q", "attention.k", "attention.v", "mlp.up")


def _dims(others):
    """Other dims for names with these endings."""
    known = [(f'"{name}": {shards.SPLIT[name]},', f'"{name}": {dim},') for name,
        dim in others.items()
             if name in shards.SPLIT]  # fmt: skip
    first = "SPLIT = {  # name ends in: dim"
    new = [f'    "{name}": {dim},' for name, dim in others.items() if name not in shards.SPLIT]
    return Edit((*known, (first, "\n".join([first, *new]))))


MISTAKES = (
    Mistake("another rank's part", edit(PART, "part.chunk(tp, dim)[tp - 1 - rank]")),
    Mistake("interleaved", edit(PART, "part.movedim(dim, 0)[rank::tp].movedim(0, dim)")),
    Mistake("the bias of a row layer", _dims({"attention.out.bias": 0, "mlp.down.bias": 0})),
    Mistake("the bias of a column layer", _dims({f"{layer}.bias": None for layer in COLUMNS})),
    Mistake("a norm or a position", _dims({f"{norm}.{what}": 0 for norm in ("norm1", "norm2",
        "norm")
                                           for what in ("weight", "bias")})),
    Mistake("a norm or a position", _dims({"position.weight": 1})),
    Mistake("rows for columns", _dims({"attention.out.weight": 0, "mlp.down.weight": 0})),
    Mistake("rows for columns", _dims({"mlp.down.weight": 0})),
    Mistake("the vocabulary", _dims({"embedding.token.weight": 1, "head.weight": 1})),
    Mistake("the vocabulary", _dims({"head.weight": None})),
    Mistake("the vocabulary", edit("if dim is not None", "if False")),
    Mistake("columns for rows", _dims({f"{layer}.weight": 1 for layer in COLUMNS})),
    Mistake("views of sharded tensors",
            edit(JOINED, f"{JOINED} if parts[1:] else tensor.chunk(tp, dim)[rank]")
            .then(COPY, "tensor")),
    Mistake("replicated tensors not copied", edit(COPY, "tensor")),
    Mistake("no error", edit(DIVIDE, "pass").then(PART, "part.tensor_split(tp, dim)[rank]")),
    Mistake("no error", edit(DIVIDE, "assert size % tp == 0")),
    Mistake("no error", edit(DIVIDE, 'divide(tensor.shape[dim], tp, name)')
            .then(PART, "part.tensor_split(tp, dim)[rank]")),
    Mistake("a fused weight chunked as one", edit(JOINED, "tensor.chunk(tp, dim)[rank]")),
    Mistake("a fused weight chunked as one", edit("tensor.split(sizes, dim)", "[tensor]")),
    Mistake("the parts in another order", edit(JOINED, JOINED.replace("parts]", "parts[::-1]]"))),
    Mistake("a fused weight in equal parts",
            edit("tensor.split(sizes, dim)", "tensor.chunk(len(sizes), dim)")),
)  # fmt: skip
