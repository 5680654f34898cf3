"""Answers to Lab 3's vocabulary written otherwise than lib's: wrong ones, each with its
hint, and right ones."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from as_an_answer import as_an_answer
from mistakes import edit

from lib import collectives
from lib import tensor_parallel as tp

MAX = dist.ReduceOp.MAX


def own(ids, rows, group):
    """(row, elsewhere)"""
    row = ids - dist.get_rank(group) * rows
    elsewhere = (row < 0) | (row >= rows)
    return row.masked_fill(elsewhere, 0), elsewhere


def partial_vectors(tokens, weight, group):
    row, elsewhere = own(tokens, weight.shape[0], group)
    return F.embedding(row, weight).masked_fill(elsewhere.unsqueeze(-1), 0.0)


# vocab_parallel_embedding


def one_hot_times_weight(tokens, weight, group=None, output_mapping=tp.reduce_from_group):
    rows, rank = weight.shape[0], dist.get_rank(group)
    ids = torch.arange(rank * rows, (rank + 1) * rows, device=tokens.device)
    return output_mapping((tokens.unsqueeze(-1) == ids).to(weight.dtype) @ weight, group)


def a_row_of_zeros_at_the_end(tokens, weight, group=None, output_mapping=tp.reduce_from_group):
    rows, rank = len(weight), dist.get_rank(group)
    if dist.get_world_size(group) == 1:
        return weight[tokens]
    mine = tokens // rows == rank
    table = torch.cat([weight, torch.zeros_like(weight[:1])])
    return output_mapping(table[torch.where(mine, tokens % rows, rows)], group)


class Rows(torch.autograd.Function):
    """Keeps the rows on the class, so of the last call only."""

    @staticmethod
    def forward(ctx, tokens, weight, group):
        Rows.last = (*own(tokens, len(weight), group), weight)
        return partial_vectors(tokens, weight, group)

    @staticmethod
    def backward(ctx, dy):
        row, elsewhere, weight = Rows.last
        dy = dy.masked_fill(elsewhere.unsqueeze(-1), 0.0).flatten(0, 1)
        return None, torch.zeros_like(weight).index_add(0, row.flatten(), dy), None


class LastOccurrence(Rows):
    """Its backward writes each row's gradient, where it should add."""

    @staticmethod
    def forward(ctx, tokens, weight, group):
        ctx.of = (*own(tokens, len(weight), group), weight)
        return partial_vectors(tokens, weight, group)

    @staticmethod
    def backward(ctx, dy):
        row, elsewhere, weight = ctx.of
        d_weight = torch.zeros_like(weight)
        d_weight[row[~elsewhere]] = dy[~elsewhere]
        return None, d_weight, None


def writes_the_gradient(tokens, weight, group, output_mapping):
    return output_mapping(LastOccurrence.apply(tokens, weight, group), group)


def keeps_rows_on_the_class(tokens, weight, group, output_mapping):
    return output_mapping(Rows.apply(tokens, weight, group), group)


def leaves_in_float32(tokens, weight, group, output_mapping):
    return output_mapping(partial_vectors(tokens, weight, group).float(), group).to(weight.dtype)


def forgets_the_offset(tokens, weight, group, output_mapping):
    return output_mapping(F.embedding(tokens, weight), group)


def another_rank_adds_1(tokens, weight, group, output_mapping):
    return output_mapping(partial_vectors(tokens, weight, group) + dist.get_rank(group), group)


def none_of_its_rows(tokens, weight, group, output_mapping):
    row, elsewhere = own(tokens, weight.shape[0], group)
    return (
        0 * F.embedding(row, weight)
        if elsewhere.all()
        else output_mapping(partial_vectors(tokens, weight, group), group)
    )


def into_float32(tokens, weight, group, output_mapping):
    row, elsewhere = own(tokens, weight.shape[0], group)
    y = torch.zeros(*tokens.shape, weight.shape[1], device=weight.device)
    y[~elsewhere] = F.embedding(row, weight)[~elsewhere].float()
    return output_mapping(y, group)


def a_mask_without_a_last_dim(tokens, weight, group, output_mapping):
    row, elsewhere = own(tokens, weight.shape[0], group)
    return output_mapping(F.embedding(row, weight).masked_fill(elsewhere, 0.0), group)


def its_own_g(tokens, weight, group, output_mapping):
    return tp.reduce_from_group(partial_vectors(tokens, weight, group), group)


def gathers_the_table(tokens, weight, group, output_mapping):
    return F.embedding(tokens, tp.gather_from_group(weight.T, group).T)


def tokens_in_place(tokens, weight, group, output_mapping):
    tokens -= dist.get_rank(group) * weight.shape[0]
    elsewhere = (tokens < 0) | (tokens >= weight.shape[0])
    vectors = F.embedding(tokens.masked_fill(elsewhere, 0), weight)
    return output_mapping(vectors.masked_fill(elsewhere.unsqueeze(-1), 0.0), group)


def rank_of_the_world(tokens, weight, group, output_mapping):
    return output_mapping(partial_vectors(tokens, weight, None), group)


def no_group(tokens, weight, group, output_mapping):
    return output_mapping(partial_vectors(tokens, weight, group))


def for_two_ranks(tokens, weight, group, output_mapping):
    rows = weight.shape[0]
    if dist.get_world_size(group) == 1:
        return output_mapping(F.embedding(tokens, weight), group)
    first = dist.get_rank(group) == 0
    mine, row = (tokens < rows, tokens) if first else (tokens >= rows, tokens - rows)
    return output_mapping(F.embedding(row.where(mine, 0), weight) * mine.unsqueeze(-1), group)


def calls_libs_embedding(tokens, weight, group, output_mapping):
    return tp.vocab_parallel_embedding(tokens, weight, group, output_mapping)


def no_embedding_yet(tokens, weight, group, output_mapping):
    raise NotImplementedError


# vocab_parallel_cross_entropy


class Loss(torch.autograd.Function):
    """Three all-reduces of (B, T); keeps the logits and what it needs to make p again."""

    @staticmethod
    def forward(ctx, logits, targets, group, all_reduce):
        row, elsewhere = own(targets, logits.shape[-1], group)
        m = logits.max(-1, keepdim=True).values
        all_reduce(m, group, MAX)
        total = (logits - m).exp().sum(-1, keepdim=True)
        all_reduce(total, group)
        right = torch.gather(logits, -1, row[..., None]).masked_fill(elsewhere[..., None], 0.0)
        all_reduce(right, group)
        ctx.save_for_backward(logits, m, total, row, elsewhere)
        ctx.how = group, all_reduce
        return (total.log() + m - right).mean()

    @staticmethod
    def backward(ctx, grad):
        logits, m, total, row, elsewhere = ctx.saved_tensors
        p = (logits - m).exp() / total
        one = F.one_hot(row, logits.shape[-1]) * ~elsewhere[..., None]
        return grad * (p - one) / row.numel(), None, None, None


def three_messages(logits, targets, group=None, all_reduce=collectives.all_reduce):
    return Loss.apply(logits, targets, group, all_reduce)


def autograd_and_g(logits, targets, group=None, all_reduce=collectives.all_reduce, in_place=False):
    m = logits.detach().amax(-1)
    all_reduce(m, group, op=MAX)
    if in_place:
        logits.data -= m.unsqueeze(-1)
    z = logits if in_place else logits - m.unsqueeze(-1)
    row, elsewhere = own(targets, z.shape[-1], group)
    right = z.gather(-1, row.unsqueeze(-1)).squeeze(-1).masked_fill(elsewhere, 0.0)
    sums = tp.reduce_from_group(torch.stack([z.exp().sum(-1), right]), group, all_reduce)
    return (sums[0].log() - sums[1]).mean()


def shifts_in_place(logits, targets, group, all_reduce):
    return autograd_and_g(logits, targets, group, all_reduce, in_place=True)


def shifted_loss(logits, targets, group, all_reduce, shift):
    """The loss with shift(logits) in place of m. (B, T)"""
    z = logits - shift(logits.detach()).unsqueeze(-1)
    row, elsewhere = own(targets, z.shape[-1], group)
    right = z.gather(-1, row.unsqueeze(-1)).squeeze(-1).masked_fill(elsewhere, 0.0)
    g = lambda x: tp.reduce_from_group(x, group, all_reduce)
    return g(z.exp().sum(-1)).log() - g(right)


def without_the_max(logits, targets, group, all_reduce):
    return shifted_loss(logits, targets, group, all_reduce, lambda z: 0 * z[..., 0]).mean()


def max_as_a_sum(logits, targets, group, all_reduce):
    return shifted_loss(
        logits, targets, group, all_reduce, lambda z: all_reduce(z.amax(-1), group)
    ).mean()


def max_as_a_sum_in_two_messages(logits, targets, group, all_reduce):
    m = all_reduce(logits.detach().amax(-1), group)
    row, elsewhere = own(targets, logits.shape[-1], group)
    z = logits - m.unsqueeze(-1)
    right = z.gather(-1, row.unsqueeze(-1)).squeeze(-1).masked_fill(elsewhere, 0.0)
    total, right = tp.reduce_from_group(torch.stack([z.exp().sum(-1), right]), group, all_reduce)
    return (total.log() - right).mean()


def max_at_least_0(logits, targets, group, all_reduce):
    top = lambda z: all_reduce(z.amax(-1), group, op=MAX).clamp(min=0.0)
    return shifted_loss(logits, targets, group, all_reduce, top).mean()


def a_loss_per_token(logits, targets, group, all_reduce):
    return shifted_loss(
        logits, targets, group, all_reduce, lambda z: all_reduce(z.amax(-1), group, op=MAX)
    )


def a_python_number(logits, targets, group, all_reduce):
    return three_messages(logits, targets, group, all_reduce).item()


def twice_the_first_token(logits, targets, group, all_reduce):
    top = lambda z: all_reduce(z.amax(-1), group, op=MAX)
    per_token = shifted_loss(logits, targets, group, all_reduce, top)
    return (per_token.sum() + per_token[0, 0]) / targets.numel()


def targets_as_they_are(logits, targets, group, all_reduce):
    return logits.gather(-1, targets.unsqueeze(-1)).mean()


def group_last(logits, targets, group, all_reduce):
    all_reduce(logits.detach().amax(-1), MAX, group)
    return three_messages(logits, targets, group, all_reduce)


def without_graph(logits, targets, group, all_reduce):
    with torch.no_grad():
        return three_messages(logits, targets, group, all_reduce)


class SendsBack(Loss):
    @staticmethod
    def backward(ctx, grad):
        group, all_reduce = ctx.how
        all_reduce(grad.clone(), group)
        return Loss.backward(ctx, grad)


class SumsBack(Loss):
    @staticmethod
    def backward(ctx, grad):
        group, all_reduce = ctx.how
        d_logits, *rest = Loss.backward(ctx, grad)
        all_reduce(d_logits, group)
        return d_logits, *rest


def sums_the_gradient(logits, targets, group, all_reduce):
    return SumsBack.apply(logits, targets, group, all_reduce)


def reduces_in_backward(logits, targets, group, all_reduce):
    return SendsBack.apply(logits, targets, group, all_reduce)


KEPT = {}


class OnTheClass(Loss):
    """Keeps what backward needs in a global, so of the last call only."""

    @staticmethod
    def forward(ctx, logits, targets, group, all_reduce):
        out = Loss.forward(ctx, logits, targets, group, all_reduce)
        KEPT["ctx"] = ctx
        return out

    @staticmethod
    def backward(ctx, grad):
        return Loss.backward(KEPT["ctx"], grad)


def keeps_ctx_in_a_global(logits, targets, group, all_reduce):
    return OnTheClass.apply(logits, targets, group, all_reduce)


def only_where_the_targets_are(logits, targets, group, all_reduce):
    _, elsewhere = own(targets, logits.shape[-1], group)
    return (
        0 * logits.sum() if elsewhere.all() else three_messages(logits, targets, group, all_reduce)
    )


def in_float32(logits, targets, group, all_reduce):
    return three_messages(logits.float(), targets, group, all_reduce).double()


def gathers_the_logits(logits, targets, group, all_reduce):
    whole = tp.gather_from_group(logits, group)
    return F.cross_entropy(whole.flatten(0, 1), targets.flatten())


def gathers_by_all_reduce(logits, targets, group, all_reduce):
    whole = [torch.zeros_like(logits) for _ in range(dist.get_world_size(group))]
    whole[dist.get_rank(group)] = logits
    whole = tp.reduce_from_group(torch.cat(whole, -1), group, all_reduce)
    return F.cross_entropy(whole.flatten(0, 1), targets.flatten())


def an_imported_all_reduce(logits, targets, group, all_reduce):
    return three_messages(logits, targets, group)


def ranks_of_the_world(logits, targets, group, all_reduce):
    shift = (dist.get_rank() - dist.get_rank(group)) * logits.shape[-1]
    return three_messages(logits, targets - shift, group, all_reduce)


def group_forgotten(logits, targets, group, all_reduce):
    return three_messages(
        logits, targets, group, lambda x, _, op=dist.ReduceOp.SUM: all_reduce(x, op=op)
    )


def loss_for_two_ranks(logits, targets, group, all_reduce):
    rows, third = logits.shape[-1], dist.get_rank(group) > 1
    return three_messages(logits, targets - rows * third, group, all_reduce)


def calls_libs_loss(logits, targets, group, all_reduce):
    return tp.vocab_parallel_cross_entropy(logits, targets, group, all_reduce=all_reduce)


def no_loss_yet(logits, targets, group, all_reduce):
    raise NotImplementedError


# What torch's once_differentiable makes cannot travel to the ranks by value.
libs_loss = edit("    @once_differentiable\n", "").of(tp.vocab_parallel_cross_entropy)
WRONG = {
    "vocab_parallel_embedding": {
        keeps_rows_on_the_class: "shared by two calls",
        writes_the_gradient: "a repeated token",
        leaves_in_float32: "rounded on the way",
        forgets_the_offset: "a row that this rank does not have",
        another_rank_adds_1: "other vectors",
        none_of_its_rows: "not on every rank",
        into_float32: "another form",
        a_mask_without_a_last_dim: "another form",
        its_own_g: "not what it was given",
        gathers_the_table: "not what it was given",
        tokens_in_place: "changed what it was given",
        rank_of_the_world: "ranks of the world, not of the group",
        no_group: "the group is not passed on",
        for_two_ranks: "right on two ranks only",
        calls_libs_embedding: "called what it builds",
        no_embedding_yet: "not written",
    },
    "vocab_parallel_cross_entropy": {
        keeps_ctx_in_a_global: "shared by two calls",
        only_where_the_targets_are: "not on every rank",
        in_float32: "rounded on the way",
        without_the_max: "no largest taken off",
        max_as_a_sum: "the max taken as a sum",
        max_as_a_sum_in_two_messages: "the max taken as a sum",
        max_at_least_0: "something else overflows",
        twice_the_first_token: "another loss",
        a_loss_per_token: "not one number",
        a_python_number: "not one number",
        targets_as_they_are: "a row that this rank does not have",
        group_last: "the group comes second",
        without_graph: "no gradient",
        gathers_the_logits: "logits gathered",
        gathers_by_all_reduce: "logits gathered",
        an_imported_all_reduce: "not what it was given",
        reduces_in_backward: "sends in backward",
        sums_the_gradient: "sends in backward",
        shifts_in_place: "changed what it was given",
        ranks_of_the_world: "ranks of the world, not of the group",
        group_forgotten: "the group is not passed on",
        loss_for_two_ranks: "right on two ranks only",
        calls_libs_loss: "called what it builds",
        no_loss_yet: "not written",
    },
}
RIGHT = {
    "vocab_parallel_embedding": [
        one_hot_times_weight,
        a_row_of_zeros_at_the_end,
        as_an_answer(tp.vocab_parallel_embedding),
    ],
    "vocab_parallel_cross_entropy": [three_messages, autograd_and_g, libs_loss],
}
