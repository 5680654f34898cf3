"""Lab 4, section 7: recompute(f, x), which keeps only x until backward. It needs no ranks.

Between forward and backward the script draws random numbers, so f draws the same numbers again only
if the answer restores the state of the generator.
"""

import torch
import torch.utils.checkpoint as torchs
from torch import nn

from lib.check.causes import hints
from lib.check.side_by_side import SideBySide, here
from lib.training import recompute as libs

CASES = here("layers", "features", "tokens", "nobody", "dropout", "twice", "nested")
LAYERS, FEATURES, TOKENS, NOBODY, DROPOUT, *_ = CASES
VALUES = ("y", "graph", "arguments", "x", "the weights")


def _x(name):
    if name == "tokens":
        return torch.tensor([[1, 1, 4], [0, 2, 1]])
    return torch.randn(0 if name == "nobody" else 3, 4, dtype=torch.float64)


def _net(name):
    if name == "tokens":
        return nn.Embedding(5, 4, dtype=torch.float64)
    between = nn.Dropout(0.5) if name in ("dropout", "twice") else nn.Tanh()
    return nn.Sequential(nn.Linear(4, 6), between, nn.Linear(6, 4), nn.Tanh()).double()


def script(make, case, show):
    name, net = case.what, _net(case.what)
    x = show.give("x", _x(name), learns=name != "features")
    f = show.counted("f", lambda x: net[2:](make(net[:2], x)) if name == "nested" else net(x))
    with show.during("forward") as run:
        y = run(make, net, run(make, net, x)) if name == "twice" else run(make, f, x)
    show("y", y)
    torch.rand(3)
    loss = (y * torch.arange(1.0, y.numel() + 1, dtype=y.dtype).view(y.shape)).sum()
    del y  # what is alive now is what the graph keeps
    yield
    show.backward(loss)
    show("the gradient of the weights", [(n, p.grad) for n, p in net.named_parameters()])
    yield


MEASURE = SideBySide(
    script, libs.recompute, CASES, (torchs.__file__,), groups=None, together=(DROPOUT, LAYERS),
    excused=dict.fromkeys(("float32", "bfloat16"), "f has the dtype of its weights"),
    slack={"alive by 1": 2 * 96 + 64},  # x is kept on ctx, and may stay until y is freed
)  # fmt: skip
EXERCISE = MEASURE.exercise(
    ("output and gradients", 2, "of x and the weights; tokens",
     (VALUES, [LAYERS, FEATURES, TOKENS, NOBODY])),
    ("the same random numbers", 2, "dropout; the generator is left where it was",
     (("x", "the weights"), [DROPOUT]), "generators"),
    ("again and again", 2, "f(f(x)), and inside one another", *VALUES),
    ("keeps x alone", 5, "bytes that the graph has saved",
     "alive by 0", "alive by 1", "alive at the end"),
    ("f runs twice", 3, "in forward, and in backward"),
    hints=hints("lab4", "recompute"),
    leaves_out={
        "alone": "there are no ranks",
        "generators": "no argument is an iterator",
        "returned": "it is compared with what f alone returns",
    },
)  # fmt: skip
