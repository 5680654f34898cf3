"""Known mistakes in grouped_mm and dropless, edits of lib's code."""

import torch
from mistakes import Mistake, edit

SPLIT = "zip(rows.split(counts.tolist()), weights, strict=True)"
JOINED = f"torch.cat(\n        [group @ w for group, w in {SPLIT}]\n    )"


def _padded(rows, weights, counts):
    longest = max(int(counts.max()), 1)
    place = torch.arange(len(rows)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    group = torch.arange(len(counts)).repeat_interleave(counts)
    slots = rows.new_zeros(len(counts), longest, rows.shape[1]).index_put((group, place), rows)
    return (slots @ weights)[group, place]


def _every_matrix(rows, weights, counts):
    group = torch.arange(len(counts)).repeat_interleave(counts)
    return (rows @ weights)[group, torch.arange(len(rows))]


def _a_matrix_a_row(rows, weights, counts):
    group = torch.arange(len(counts)).repeat_interleave(counts)
    return (rows.unsqueeze(1) @ weights[group]).squeeze(1)


PAIRS = "pairs = pairs[asked[pairs] >= 0]"
TOKEN = "pairs // k, load(asked, n_experts)"
THERE, HOME = (
    "rows = experts(transpose_blocks(rows, received), received.sum(0))",
    "rows = transpose_blocks(rows, received.t())",
)
LISTS = "counts.view_as(received).sum(1).tolist(), received.sum(1).tolist()"
SENT = "x[token], send_counts, receive_counts, group, all_to_all"
BACK = "exchange_tokens(rows, receive_counts, send_counts, group, all_to_all)"
WEIGHTED = "weighted = choice.weights.flatten()[pairs].unsqueeze(1) * rows"
RETURN = "return torch.zeros_like(x).index_add(0, token, weighted)"

MISTAKES = {
    "grouped_mm": (
        Mistake("nothing returned", edit("return torch.cat", "torch.cat")),
        Mistake("no gradient", edit("group @ w for", "group.detach() @ w.detach() for")),
        Mistake("another gradient", edit("group @ w for",
            "1.5 * (y := group @ w) - 0.5 * y.detach() for")),
        Mistake("rounded on the way", edit("group @ w for",
            "(group.float() @ w.float()).double() for")),
        Mistake("padded groups", _padded),
        Mistake("every row by every matrix", _every_matrix),
        Mistake("a matrix for each row", _a_matrix_a_row),
        Mistake(
            "a group without rows",
            edit(
                "rows.split(counts.tolist()), weights, strict=True",
                "rows.split([n for n in counts.tolist() if n] or [0]), weights",
            ),
        ),
        Mistake("other rows", edit("weights, strict", "weights.flip(0), strict")),
        Mistake("arguments changed",
                edit(f"return {JOINED}",
                     f"y = {JOINED}\n    rows.data.zero_()\n    return y")),
        *(Mistake("another matrix", edit("group @ w for", f"group @ {w} for"))
          for w in ("w.t()", "weights.mean(0)")),
        Mistake("equal groups",
                edit("rows.split(counts.tolist())", "rows.tensor_split(len(weights))")),
    ),
    "dropless": (
        Mistake("nothing returned", edit(RETURN, RETURN.removeprefix("return "))),
        Mistake("the group is not passed on", edit(SENT, SENT.replace("group", "None"))),
        Mistake("the group is not passed on",
                edit("exchange_counts(counts, group,", "exchange_counts(counts, None,")
                .then(SENT, SENT.replace("group", "None"))
                .then(BACK, BACK.replace("group", "None"))),
        Mistake("dropped",
                edit(PAIRS,
                     f"{PAIRS}\n    C = int(1.25 * len(asked) / n_experts) + 1\n    pairs = "
                     f"torch.cat([pairs[asked[pairs] == e][:C] for e in range(n_experts)])")
                .then("load(asked,", "load(asked[pairs],")),
        Mistake("divided", edit(RETURN, f"{RETURN} / k")),
        *(Mistake("divided", edit(WEIGHTED,
            f"{WEIGHTED} / choice.weights.sum(1, keepdim=True){least}[token]"))
          for least in ("", ".clamp(min=1e-9)")),
        Mistake("weighted before the experts",
                edit("x[token]", "x[token] * choice.weights.flatten()[pairs].unsqueeze(1)")
                .then(WEIGHTED, "weighted = rows")),
        *(Mistake("transposed the wrong way", change)
          for change in (edit(HOME, HOME.replace(".t()", "")),
                         edit(THERE, THERE.replace("(rows, received)", "(rows, received.t())")))),
        Mistake("not what it was given",
                edit("exchange_counts(counts, group, all_to_all)",
                     "exchange_counts(counts, group)")),
        Mistake("tokens that ask for nobody", edit(PAIRS, "pass")),
        Mistake("experts that get nobody", edit("load(asked, n_experts)",
            "torch.bincount(asked[asked >= 0])")),
        Mistake("the lists do not fit",
                edit(BACK, BACK.replace("receive_counts, send_counts",
                    "send_counts, receive_counts"))),
        Mistake("a rank skips a call",
                edit("received = exchange_counts",
                     "if not len(x):\n        return x\n    received = exchange_counts")),
        Mistake("experts get each other's rows",
                edit(THERE, "rows = experts(rows, received.sum(0))").then(HOME, "pass")),
        Mistake("sent home in the experts' order", edit(HOME, "pass")),
        Mistake("pair i is not token i", edit(TOKEN, "pairs % len(x), load(asked, n_experts)")),
        Mistake("weights of other pairs",
                edit(WEIGHTED,
                     "weighted = choice.weights.flatten()[: len(pairs)].unsqueeze(1) * rows")),
        Mistake("not weighted", edit(WEIGHTED, "weighted = rows")),
        Mistake("the last one wins",
                edit(RETURN, "y = torch.zeros_like(x)\n    y[token] = weighted\n    return y")),
        Mistake("the weights' gradient", edit(WEIGHTED, WEIGHTED.replace("choice.weights",
            "choice.weights.detach()"))),
        Mistake("another gradient",
                edit(WEIGHTED,
                     f"{WEIGHTED}\n    weighted = 1.5 * weighted - 0.5 * weighted.detach()")),
        Mistake(
            "no gradient",
            edit(THERE, THERE.replace("transpose_blocks(rows, received)",
                "transpose_blocks(rows, received).detach()")),
        ),
        Mistake("rounded on the way", edit(BACK, BACK.replace("(rows,",
            "(rows.float(),") + ".double()")),
        Mistake("more than necessary", edit(BACK, f"{BACK} + 0 * {BACK}")),
        Mistake("arguments changed",
                edit(RETURN,
                     f"y = {RETURN.removeprefix('return ')}\n    x.data.zero_()\n    return y")),
    ),
}  # fmt: skip
