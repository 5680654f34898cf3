"""The mistakes that are made in ExpertParallelMoE.run, told by what came of them, and the hint for each."""

from lib.check.framework import Hint
from lib.check.lab0.mistakes import hung
from lib.check.lab5.ep_exchange_hints import does_not_fit, in_way, left_out
from lib.check.lab5.here import is_kind


def _in_forward(p):
    return does_not_fit(p) and in_way(p, "forward") and not left_out(p)


def _gradient(p):
    return p.kind in ("value", "form") and "gradient" in p.facts.get("what", "")


HINTS = (
    Hint(
        "called lib's",
        lambda p: p.kind == "built-in",
        "write `run` of your class from what its docstring lists, without super().run.",
    ),
    Hint(
        "the group is not passed on",
        lambda p: p.kind == "group",
        "without a group all_to_all takes every rank there is. Hand on self.group.",
    ),
    Hint(
        "nothing returned",
        lambda p: p.kind == "raised" and "NoneType" in p.text and not p.facts["in the answer"],
        "`run` must end with a `return` of the rows that came home.",
    ),
    Hint(
        "a rank without rows",
        lambda p: left_out(p) or hung(p),
        "every rank calls exchange_counts once and exchange twice, also one that has no rows or gets none: the others "
        "wait for it, in backward too.",
    ),
    Hint(
        "counts not exchanged",
        lambda p: _in_forward(p) and p.facts.get("calls") == p.facts.get("rows") == 1,
        "how many rows come from each rank is known to the others only: first moe.exchange_counts(load, self.group, "
        "self.all_to_all).",
    ),
    Hint(
        "home by the same lists",
        lambda p: _in_forward(p) and p.facts["rows"] == 2,
        "on the way home the two lists change places: what was received is sent, self.exchange(rows, receive_counts, "
        "send_counts).",
    ),
    Hint(
        "another rank's counts",
        _in_forward,
        "to rank j go the rows for its experts, j E/ep to (j+1) E/ep - 1: load.view_as(received).sum(1). From rank i "
        "come received[i].sum().",
    ),
    Hint(
        "experts get each other's rows",
        is_kind("value", "sender by sender, cut"),
        "what arrives is sorted by expert within each sender only. transpose_blocks(rows, received) puts each expert's "
        "rows together, for run_experts.",
    ),
    Hint(
        "sent home in the experts' order",
        is_kind("value", "sent home expert by expert"),
        "run_experts leaves rows expert by expert. Each rank's own must stand together again before they go home: "
        "transpose_blocks(rows, received.t()).",
    ),
    Hint(
        "transposed the wrong way",
        is_kind("value", "counts of another shape"),
        "transpose_blocks takes the counts as the rows stand before it: (sender, expert), received, on the way to the "
        "experts; (expert, sender), received.t(), on the way back.",
    ),
    Hint(
        "through no expert",
        is_kind("value", "through no expert"),
        "the rows went there and back, and nothing was done to them: moe.run_experts(self.experts.values(), ...).",
    ),
    Hint(
        "not through all experts",
        is_kind("value", "first expert alone"),
        "each expert here takes its own rows: run_experts splits them by received.sum(0), rows of each expert.",
    ),
    Hint(
        "not sent home",
        lambda p: p.facts.get("rows") == 1 and not _gradient(p) and not p.facts.get("in the answer", False),
        "what `run` returns goes to `combine`, which needs the m rows that left this rank: exchange them back.",
    ),
    Hint(
        "rows of other experts",
        lambda p: p.kind == "raised" and "split" in p.text,
        "run_experts wants the rows that each expert here gets from all ranks, received.sum(0), (E/ep,): not what this "
        "rank sends.",
    ),
    Hint(
        "gradients stop",
        lambda p: _gradient(p) and (p.facts["got"] is None or is_kind("value", "zeros", "router alone")(p)),
        "somewhere on the way the graph is cut: no detach(), no no_grad(). self.exchange has a backward, all_to_all "
        "has none.",
    ),
    Hint(
        "gradient scaled",
        is_kind("value", "by the number of ranks"),
        "backward of the exchange has brought each expert the gradients of all ranks' tokens, added up. Dividing is "
        "the business of reduce_gradients.",
    ),
    Hint("another gradient", _gradient, "rows that are copied, reordered and exchanged need nothing more."),
    Hint(
        "not what it was given",
        lambda p: p.kind == "another way",
        "whoever builds the layer chooses what sends: self.all_to_all, which self.exchange takes by itself, and "
        "exchange_counts if you hand it on.",
    ),
    Hint(
        "more than rows and counts",
        lambda p: p.kind == "elements",
        "there travel, once: E/ep counts to each other rank, and the row of each kept pair whose expert is elsewhere, "
        "there and back, unpadded.",
    ),
    Hint(
        "another result",
        lambda p: p.kind in ("value", "form", "mismatch", "died") or (p.kind == "raised" and "size" in p.text),
        "counts; rows there; expert by expert; experts; sender by sender; rows home. What `run` returns has the order "
        "of the rows that it was given.",
    ),
)
