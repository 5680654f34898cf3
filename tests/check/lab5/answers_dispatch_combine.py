"""Answers to Lab 5's dispatch and combine: wrong ones, each with the hint that it must get,
and right ones."""

import torch
import torch.nn.functional as F
from as_an_answer import as_an_answer

from lib import moe

# dispatch: right


def dispatch_as_in_the_notebook(x, routing):
    return x[routing.token]


def by_gather(x, routing):
    return x.gather(0, routing.token.unsqueeze(1).expand(-1, x.shape[1]))


def by_a_one_hot_product(x, routing):
    return F.one_hot(routing.token, max(1, len(x))).to(x.dtype)[:, : len(x)] @ x


# dispatch: wrong


def nothing_for_nobody(x, routing):
    if len(routing.token) == 0:
        return x.new_zeros(0, x.shape[1])
    return x[routing.token]


def itself_where_it_is_in_order(x, routing):
    in_order = len(routing.token) == len(x) and bool((routing.token == torch.arange(len(x))).all())
    return x if in_order else x[routing.token]


INDICES = {}


def index_kept_by_size(x, routing):
    """Who is where is looked up once for each number of pairs."""
    return x[INDICES.setdefault(len(routing.token), routing.token)]


def a_list(x, routing):
    return [x[token] for token in routing.token.tolist()]


def rows_in_float32(x, routing):
    return x.float()[routing.token]


def backwards(x, routing):
    return x[routing.token].flip(0)


def without_gradient(x, routing):
    return x.detach()[routing.token]


def half_a_gradient(x, routing):
    rows = x[routing.token]
    return (rows + rows.detach()) / 2


class LastCopyLearns(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, token):
        ctx.save_for_backward(x, token)
        return x[token]

    @staticmethod
    def backward(ctx, dy):
        x, token = ctx.saved_tensors
        dx = torch.zeros_like(x)
        dx[token] = dy
        return dx, None


def the_last_copy_learns(x, routing):
    return LastCopyLearns.apply(x, routing.token)


def stacked(x, routing):
    return torch.stack([x[token] for token in routing.token])


def sorts_the_routing(x, routing):
    rows = x[routing.token]
    routing.token.copy_(routing.token.sort().values)
    return rows


def no_rows(x, routing):
    x[routing.token]


def calls_libs_dispatch(x, routing):
    return moe.dispatch(x, routing)


def no_dispatch_yet(x, routing):
    raise NotImplementedError


# combine: right


def combine_as_in_the_notebook(rows, routing, n):
    y = torch.zeros(n, rows.shape[1], dtype=rows.dtype, device=rows.device)
    return y.index_add(0, routing.token, routing.weight.unsqueeze(1) * rows)


def by_scatter_add(rows, routing, n):
    index = routing.token[:, None].expand_as(rows)
    return rows.new_zeros(n, rows.shape[1]).scatter_add(
        0, index, torch.einsum("m,md->md", routing.weight, rows)
    )


def by_a_matrix(rows, routing, n):
    mask = (torch.arange(n)[:, None] == routing.token).to(rows.dtype)
    return (mask * routing.weight) @ rows


def token_by_token(rows, routing, n, nothing=lambda rows: rows.sum() * 0):
    y = torch.zeros(n, rows.shape[1]).type_as(rows) + nothing(rows)
    for i, t in enumerate(routing.token.tolist()):
        y[t] = y[t] + routing.weight[i] * rows[i]
    return y


# combine: wrong


def token_by_token_alone(rows, routing, n):
    """Zeros that nothing was added to are in no graph: the next backward pass hangs."""
    return token_by_token(rows, routing, n, nothing=lambda rows: 0)


def zeros_for_nobody(rows, routing, n):
    if len(rows) == 0:
        return rows.new_zeros(n, rows.shape[1])
    return combine_as_in_the_notebook(rows, routing, n)


def in_float64_always(rows, routing, n):
    y = torch.zeros(n, rows.shape[1], dtype=torch.float64)
    return y.index_add(0, routing.token, (routing.weight[:, None] * rows).double())


def in_float32_between(rows, routing, n):
    y = torch.zeros(n, rows.shape[1]).index_add(
        0, routing.token, (routing.weight[:, None] * rows).float()
    )
    return y.to(rows.dtype)


def two_choices_at_most(rows, routing, n):
    """Adds each token's first pair and its last, as if k were 2."""
    y = rows.new_zeros(n, rows.shape[1])
    seen = {}
    for i, t in enumerate(routing.token.tolist()):
        seen.setdefault(t, []).append(i)
    for t, pairs in seen.items():
        y[t] = sum(routing.weight[i] * rows[i] for i in {pairs[0], pairs[-1]})
    return y


def combine(rows, routing, n, weight=None, index=None, reduce="sum"):
    """The right answer, but for what is given."""
    weight = routing.weight if weight is None else weight
    index = (routing.token if index is None else index)[:, None].expand_as(rows)
    return rows.new_zeros(n, rows.shape[1]).scatter_reduce(
        0, index, weight[:, None] * rows, reduce, include_self=False
    )


def float32(rows, routing, n):
    return torch.zeros(n, rows.shape[1]).index_add(0, routing.token, routing.weight[:, None] * rows)


def float32_in_a_loop(rows, routing, n):
    y = torch.zeros(n, rows.shape[1])
    for i, t in enumerate(routing.token.tolist()):
        y[t] += routing.weight[i] * rows[i]
    return y


def no_dimension_for_the_weight(rows, routing, n):
    return rows.new_zeros(n, rows.shape[1]).index_add(0, routing.token, routing.weight * rows)


SUMS = {}


def adds_to_an_earlier_sum(rows, routing, n):
    before = SUMS.get((n, rows.dtype), rows.new_zeros(n, rows.shape[1]))
    y = before.index_add(0, routing.token, routing.weight[:, None] * rows)
    SUMS[n, rows.dtype] = y.detach()
    return y


def stacked_sums(rows, routing, n):
    weighted = routing.weight[:, None] * rows
    return torch.stack([weighted[routing.token == t].sum(0) for t in range(n)])


def largest_token(rows, routing, n):
    y = rows.new_zeros(max(n, routing.token.max().item() + 1), rows.shape[1])
    return y.index_add(0, routing.token, routing.weight[:, None] * rows)


def weights_detached(rows, routing, n):
    return combine(rows, routing, n, routing.weight.detach())


def rows_detached(rows, routing, n):
    return combine(rows.detach(), routing, n)


class GradientNotWeighted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, weight, token, n):
        ctx.save_for_backward(rows, token)
        return rows.new_zeros(n, rows.shape[1]).index_add(0, token, weight[:, None] * rows)

    @staticmethod
    def backward(ctx, dy):
        rows, token = ctx.saved_tensors
        return dy[token], (rows * dy[token]).sum(1), None, None


def gradient_not_weighted(rows, routing, n):
    return GradientNotWeighted.apply(rows, routing.weight, routing.token, n)


def the_largest(rows, routing, n):
    return combine(rows, routing, n, reduce="amax")


def multiplied_in_place(rows, routing, n):
    rows *= routing.weight[:, None]
    return rows.new_zeros(n, rows.shape[1]).index_add(0, routing.token, rows)


def no_sum(rows, routing, n):
    combine(rows, routing, n)


def calls_libs_combine(rows, routing, n):
    return moe.combine(rows, routing, n)


def no_combine_yet(rows, routing, n):
    raise NotImplementedError


WRONG = {
    "dispatch": {
        calls_libs_dispatch: "called what it builds",
        nothing_for_nobody: "outside the graph",
        no_rows: "nothing returned",
        stacked: "nobody",
        without_gradient: "no gradient",
        the_last_copy_learns: "another gradient",
        backwards: "other rows",
        sorts_the_routing: "arguments changed",
        half_a_gradient: "another gradient",
        itself_where_it_is_in_order: "not a copy",
        index_kept_by_size: "other rows",
        a_list: "other rows",
        rows_in_float32: "another dtype",
        no_dispatch_yet: "not written",
    },
    "combine": {
        token_by_token_alone: "outside the graph",
        zeros_for_nobody: "outside the graph",
        calls_libs_combine: "called what it builds",
        no_sum: "nothing returned",
        float32: "another dtype",
        stacked_sums: "nobody",
        weights_detached: "no gradient",
        gradient_not_weighted: "another gradient",
        the_largest: "another sum",
        multiplied_in_place: "arguments changed",
        float32_in_a_loop: "another dtype",
        no_dimension_for_the_weight: "shapes do not fit",
        adds_to_an_earlier_sum: "used again by a later call",
        largest_token: "nobody",
        rows_detached: "no gradient",
        in_float64_always: "of one dtype only",
        in_float32_between: "rounded on the way",
        two_choices_at_most: "another sum",
        no_combine_yet: "not written",
    },
}
RIGHT = {
    "dispatch": [
        dispatch_as_in_the_notebook,
        by_gather,
        by_a_one_hot_product,
        as_an_answer(moe.dispatch),
    ],
    "combine": [
        combine_as_in_the_notebook,
        by_scatter_add,
        by_a_matrix,
        token_by_token,
        as_an_answer(moe.combine),
    ],
}
