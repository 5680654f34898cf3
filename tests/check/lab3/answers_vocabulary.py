"""Answers to Lab 3's vocabulary, function by function: wrong ones, each with its hint, and right ones."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

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


# vocab_parallel_embedding: right


def masks(tokens, weight, group=None, leave=tp.reduce_from_group):
    return leave(partial_vectors(tokens, weight, group), group)


def one_hot_times_weight(tokens, weight, group=None, leave=tp.reduce_from_group):
    rows, rank = weight.shape[0], dist.get_rank(group)
    ids = torch.arange(rank * rows, (rank + 1) * rows, device=tokens.device)
    return leave((tokens.unsqueeze(-1) == ids).to(weight.dtype) @ weight, group)


def a_row_of_zeros_at_the_end(tokens, weight, group=None, leave=tp.reduce_from_group):
    rows, rank = len(weight), dist.get_rank(group)
    mine = tokens // rows == rank
    table = torch.cat([weight, torch.zeros_like(weight[:1])])
    return leave(table[torch.where(mine, tokens % rows, rows)], group)


# vocab_parallel_embedding: wrong


def forgets_the_offset(tokens, weight, group, leave):
    return leave(F.embedding(tokens, weight), group)


def greater_not_greater_or_equal(tokens, weight, group, leave):
    row = tokens - dist.get_rank(group) * weight.shape[0]
    elsewhere = (row < 0) | (row > weight.shape[0])
    return leave(F.embedding(row.masked_fill(elsewhere, 0), weight).masked_fill(elsewhere.unsqueeze(-1), 0.0), group)


def no_zeros(tokens, weight, group, leave):
    row, _ = own(tokens, weight.shape[0], group)
    return leave(F.embedding(row, weight), group)


def clamps(tokens, weight, group, leave):
    rows = weight.shape[0]
    return leave(F.embedding((tokens - dist.get_rank(group) * rows).clamp(0, rows - 1), weight), group)


def modulo(tokens, weight, group, leave):
    return leave(F.embedding(tokens % weight.shape[0], weight), group)


def never_leaves(tokens, weight, group, leave):
    return partial_vectors(tokens, weight, group)


def row_0_is_elsewhere(tokens, weight, group, leave):
    row, _ = own(tokens, weight.shape[0], group)
    return leave(F.embedding(row, weight) * (row > 0).unsqueeze(-1), group)


def interleaved_rows(tokens, weight, group, leave):
    mine = tokens % dist.get_world_size(group) == dist.get_rank(group)
    row = torch.where(mine, tokens // dist.get_world_size(group), 0)
    return leave(F.embedding(row, weight) * mine.unsqueeze(-1), group)


def the_last_rank_first(tokens, weight, group, leave):
    rows, N = weight.shape[0], dist.get_world_size(group)
    row = tokens - (N - 1 - dist.get_rank(group)) * rows
    mine = (row >= 0) & (row < rows)
    return leave(F.embedding(row.where(mine, 0), weight) * mine.unsqueeze(-1), group)


def takes_the_mean(tokens, weight, group, leave):
    return leave(partial_vectors(tokens, weight, group), group) / dist.get_world_size(group)


def leaves_twice(tokens, weight, group, leave):
    return leave(leave(partial_vectors(tokens, weight, group), group), group)


def into_float32(tokens, weight, group, leave):
    row, elsewhere = own(tokens, weight.shape[0], group)
    y = torch.zeros(*tokens.shape, weight.shape[1], device=weight.device)
    y[~elsewhere] = F.embedding(row, weight)[~elsewhere].float()
    return leave(y, group)


def one_vector_after_another(tokens, weight, group, leave):
    return leave(partial_vectors(tokens, weight, group).flatten(0, 1), group)


def zeros_by_data(tokens, weight, group, leave):
    row, elsewhere = own(tokens, weight.shape[0], group)
    vectors = F.embedding(row, weight)
    vectors.data[elsewhere] = 0.0
    return leave(vectors, group)


def detaches(tokens, weight, group, leave):
    return leave(partial_vectors(tokens, weight.data, group), group)


def scales_the_gradient(tokens, weight, group, leave):
    y = partial_vectors(tokens, weight, group)
    N = dist.get_world_size(group)
    return leave(N * y - (N - 1) * y.detach(), group)


def its_own_g(tokens, weight, group, leave):
    return tp.reduce_from_group(partial_vectors(tokens, weight, group), group)


def gathers_the_table(tokens, weight, group, leave):
    return F.embedding(tokens, tp.gather_from_group(weight.T, group).T)


def a_g_per_sequence(tokens, weight, group, leave):
    return torch.stack([leave(y, group) for y in partial_vectors(tokens, weight, group)])


def tokens_in_place(tokens, weight, group, leave):
    tokens -= dist.get_rank(group) * weight.shape[0]
    elsewhere = (tokens < 0) | (tokens >= weight.shape[0])
    vectors = F.embedding(tokens.masked_fill(elsewhere, 0), weight)
    y = leave(vectors.masked_fill(elsewhere.unsqueeze(-1), 0.0), group)
    return y


def rank_of_the_world(tokens, weight, group, leave):
    return leave(partial_vectors(tokens, weight, None), group)


def no_group(tokens, weight, group, leave):
    return leave(partial_vectors(tokens, weight, group))


def for_two_ranks(tokens, weight, group, leave):
    rows = weight.shape[0]
    if dist.get_world_size(group) == 1:
        return leave(F.embedding(tokens, weight), group)
    if dist.get_rank(group) == 0:
        mine, row = tokens < rows, tokens
    else:
        mine, row = tokens >= rows, tokens - rows
    return leave(F.embedding(row.where(mine, 0), weight) * mine.unsqueeze(-1), group)


def calls_libs_embedding(tokens, weight, group, leave):
    return tp.vocab_parallel_embedding(tokens, weight, group, leave)


def no_embedding_yet(tokens, weight, group, leave):
    raise NotImplementedError


# vocab_parallel_cross_entropy: right


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
        return (total.log() + m - right).mean()

    @staticmethod
    def backward(ctx, grad):
        logits, m, total, row, elsewhere = ctx.saved_tensors
        p = (logits - m).exp() / total
        one = F.one_hot(row, logits.shape[-1]) * ~elsewhere[..., None]
        return grad * (p - one) / row.numel(), None, None, None


def three_messages(logits, targets, group=None, all_reduce=collectives.all_reduce):
    return Loss.apply(logits, targets, group, all_reduce)


def autograd_and_g(logits, targets, group=None, all_reduce=collectives.all_reduce):
    m = logits.detach().amax(-1)
    all_reduce(m, group, op=MAX)
    z = logits - m.unsqueeze(-1)
    row, elsewhere = own(targets, z.shape[-1], group)
    right = z.gather(-1, row.unsqueeze(-1)).squeeze(-1).masked_fill(elsewhere, 0.0)
    sums = tp.reduce_from_group(torch.stack([z.exp().sum(-1), right]), group, all_reduce)
    return (sums[0].log() - sums[1]).mean()


# vocab_parallel_cross_entropy: wrong


def parts(logits, targets, group):
    """row, elsewhere, the target's logit or 0: (B, T) each"""
    row, elsewhere = own(targets, logits.shape[-1], group)
    return row, elsewhere, logits.gather(-1, row.unsqueeze(-1)).squeeze(-1).masked_fill(elsewhere, 0.0)


def largest(logits, group, all_reduce):
    m = logits.detach().amax(-1)
    all_reduce(m, group, op=MAX)
    return m


def g(x, group, all_reduce):
    return tp.reduce_from_group(x, group, all_reduce)


def softmax_of_its_own(logits, targets, group, all_reduce):
    _, _, right = parts(logits, targets, group)
    return (logits.logsumexp(-1) - g(right, group, all_reduce)).mean()


def cross_entropy_of_its_own(logits, targets, group, all_reduce):
    row, _ = own(targets, logits.shape[-1], group)
    return F.cross_entropy(logits.flatten(0, 1), row.flatten())


def adds_the_logs(logits, targets, group, all_reduce):
    _, _, right = parts(logits, targets, group)
    return (g(logits.logsumexp(-1), group, all_reduce) - g(right, group, all_reduce)).mean()


def without_the_max(logits, targets, group, all_reduce):
    _, _, right = parts(logits, targets, group)
    return (g(logits.exp().sum(-1), group, all_reduce).log() - g(right, group, all_reduce)).mean()


def max_as_a_sum(logits, targets, group, all_reduce):
    m = logits.detach().amax(-1)
    all_reduce(m, group)
    z = logits - m.unsqueeze(-1)
    _, _, right = parts(z, targets, group)
    return (g(z.exp().sum(-1), group, all_reduce).log() - g(right, group, all_reduce)).mean()


def max_at_least_0(logits, targets, group, all_reduce):
    m = largest(logits, group, all_reduce).clamp(min=0.0)
    z = logits - m.unsqueeze(-1)
    _, _, right = parts(z, targets, group)
    return (g(z.exp().sum(-1), group, all_reduce).log() - g(right, group, all_reduce)).mean()


def max_of_its_own(logits, targets, group, all_reduce):
    z = logits - logits.detach().amax(-1, keepdim=True)
    _, _, right = parts(z, targets, group)
    return (g(z.exp().sum(-1), group, all_reduce).log() - g(right, group, all_reduce)).mean()


def m_off_the_sum_only(logits, targets, group, all_reduce):
    m = largest(logits, group, all_reduce)
    _, _, right = parts(logits, targets, group)
    total = g((logits - m.unsqueeze(-1)).exp().sum(-1), group, all_reduce)
    return (total.log() - g(right, group, all_reduce)).mean()


def a_target_on_every_rank(logits, targets, group, all_reduce):
    m = largest(logits, group, all_reduce)
    z = logits - m.unsqueeze(-1)
    row, _ = own(targets, z.shape[-1], group)
    right = z.gather(-1, row.unsqueeze(-1)).squeeze(-1)
    return (g(z.exp().sum(-1), group, all_reduce).log() - g(right, group, all_reduce)).mean()


def target_not_summed(logits, targets, group, all_reduce):
    m = largest(logits, group, all_reduce)
    z = logits - m.unsqueeze(-1)
    _, _, right = parts(z, targets, group)
    return (g(z.exp().sum(-1), group, all_reduce).log() - right).mean()


def sum_over_tokens(logits, targets, group, all_reduce):
    return three_messages(logits, targets, group, all_reduce) * targets.numel()


def summed_over_the_ranks_too(logits, targets, group, all_reduce):
    return g(three_messages(logits, targets, group, all_reduce), group, all_reduce)


def a_loss_per_token(logits, targets, group, all_reduce):
    m = largest(logits, group, all_reduce)
    z = logits - m.unsqueeze(-1)
    _, _, right = parts(z, targets, group)
    return g(z.exp().sum(-1), group, all_reduce).log() - g(right, group, all_reduce)


def targets_as_they_are(logits, targets, group, all_reduce):
    m = largest(logits, group, all_reduce)
    right = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    total = g((logits - m.unsqueeze(-1)).exp().sum(-1), group, all_reduce)
    return (total.log() + m - right).mean()


def group_last(logits, targets, group, all_reduce):
    m = logits.detach().amax(-1)
    all_reduce(m, MAX, group)
    return three_messages(logits, targets, group, all_reduce)


def without_graph(logits, targets, group, all_reduce):
    with torch.no_grad():
        return three_messages(logits, targets, group, all_reduce)


def with_backward(gradient, sends=False):
    """A right loss with backward gradient(p, one, grad, tokens, N)."""

    class Wrong(Loss):
        @staticmethod
        def forward(ctx, logits, targets, group, all_reduce):
            ctx.how = group, all_reduce
            return Loss.forward(ctx, logits, targets, group, all_reduce)

        @staticmethod
        def backward(ctx, grad):
            logits, m, total, row, elsewhere = ctx.saved_tensors
            p = (logits - m).exp() / total
            one = F.one_hot(row, logits.shape[-1])
            if sends:
                ctx.how[1](grad.clone(), ctx.how[0])
            dz = gradient(p, one, one * ~elsewhere[..., None], grad, row.numel(), dist.get_world_size(ctx.how[0]))
            return dz, None, None, None

    return Wrong


def p_alone(logits, targets, group, all_reduce):
    return with_backward(lambda p, one, right, grad, n, N: grad * p / n).apply(logits, targets, group, all_reduce)


def a_1_on_every_rank(logits, targets, group, all_reduce):
    Wrong = with_backward(lambda p, one, right, grad, n, N: grad * (p - one) / n)
    return Wrong.apply(logits, targets, group, all_reduce)


def p_of_its_own(logits, targets, group, all_reduce):
    Wrong = with_backward(lambda p, one, right, grad, n, N: grad * (p / p.sum(-1, keepdim=True) - right) / n)
    return Wrong.apply(logits, targets, group, all_reduce)


def ignores_grad(logits, targets, group, all_reduce):
    Wrong = with_backward(lambda p, one, right, grad, n, N: (p - right) / n)
    return Wrong.apply(logits, targets, group, all_reduce)


def not_over_tokens(logits, targets, group, all_reduce):
    Wrong = with_backward(lambda p, one, right, grad, n, N: grad * (p - right))
    return Wrong.apply(logits, targets, group, all_reduce)


def the_other_sign(logits, targets, group, all_reduce):
    Wrong = with_backward(lambda p, one, right, grad, n, N: grad * (right - p) / n)
    return Wrong.apply(logits, targets, group, all_reduce)


def reduces_in_backward(logits, targets, group, all_reduce):
    Wrong = with_backward(lambda p, one, right, grad, n, N: grad * (p - right) / n, sends=True)
    return Wrong.apply(logits, targets, group, all_reduce)


def through_the_largest(logits, targets, group, all_reduce):
    z = logits - Largest.apply(logits, group, all_reduce).unsqueeze(-1)
    _, _, right = parts(z, targets, group)
    return (g(z.exp().sum(-1), group, all_reduce).log() - g(right, group, all_reduce)).mean()


class Largest(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, group, all_reduce):
        m = logits.amax(-1)
        all_reduce(m, group, op=MAX)
        ctx.save_for_backward(logits == m.unsqueeze(-1))
        return m

    @staticmethod
    def backward(ctx, dm):
        (is_largest,) = ctx.saved_tensors
        return dm.unsqueeze(-1) * is_largest, None, None


def gathers_the_logits(logits, targets, group, all_reduce):
    whole = tp.gather_from_group(logits, group)
    return F.cross_entropy(whole.flatten(0, 1), targets.flatten())


def gathers_with_torchs(logits, targets, group, all_reduce):
    N, rank = dist.get_world_size(group), dist.get_rank(group)
    everyones = [torch.empty_like(logits) for _ in range(N)]
    dist.all_gather(everyones, logits.detach(), group=group)
    everyones[rank] = logits
    return F.cross_entropy(torch.cat(everyones, -1).flatten(0, 1), targets.flatten())


def gathers_by_all_reduce(logits, targets, group, all_reduce):
    N, rank = dist.get_world_size(group), dist.get_rank(group)
    whole = [torch.zeros_like(logits) for _ in range(N)]
    whole[rank] = logits
    return F.cross_entropy(g(torch.cat(whole, -1), group, all_reduce).flatten(0, 1), targets.flatten())


def an_imported_all_reduce(logits, targets, group, all_reduce):
    return three_messages(logits, targets, group, collectives.all_reduce)


def a_fourth_number(logits, targets, group, all_reduce):
    all_reduce(logits.detach().sum(-1), group)
    return three_messages(logits, targets, group, all_reduce)


def shifts_in_place(logits, targets, group, all_reduce):
    m = largest(logits, group, all_reduce)
    logits.data -= m.unsqueeze(-1)
    _, _, right = parts(logits, targets, group)
    sums = g(torch.stack([logits.exp().sum(-1), right]), group, all_reduce)
    return (sums[0].log() - sums[1]).mean()


def ranks_of_the_world(logits, targets, group, all_reduce):
    m = largest(logits, group, all_reduce)
    z = logits - m.unsqueeze(-1)
    _, _, right = parts(z, targets, None)
    sums = g(torch.stack([z.exp().sum(-1), right]), group, all_reduce)
    return (sums[0].log() - sums[1]).mean()


def group_forgotten(logits, targets, group, all_reduce):
    return three_messages(logits, targets, group, lambda x, _, op=dist.ReduceOp.SUM: all_reduce(x, op=op))


def loss_for_two_ranks(logits, targets, group, all_reduce):
    V, N, rank = logits.shape[-1], dist.get_world_size(group), dist.get_rank(group)
    mine = (targets >= V if rank else targets < V) if N > 1 else targets >= 0
    z = logits - largest(logits, group, all_reduce).unsqueeze(-1)
    right = z.gather(-1, torch.where(mine, targets - V * (rank > 0), 0).clamp(0, V - 1).unsqueeze(-1)).squeeze(-1)
    sums = g(torch.stack([z.exp().sum(-1), right * mine]), group, all_reduce)
    return (sums[0].log() - sums[1]).mean()


def calls_libs_loss(logits, targets, group, all_reduce):
    return tp.vocab_parallel_cross_entropy(logits, targets, group, all_reduce=all_reduce)


def no_loss_yet(logits, targets, group, all_reduce):
    raise NotImplementedError


WRONG = {
    "vocab_parallel_embedding": {
        forgets_the_offset: "a row that this rank does not have",
        no_zeros: "no zeros for other ranks' tokens",
        never_leaves: "not summed",
        interleaved_rows: "another token's row",
        takes_the_mean: "a mean or a multiple",
        row_0_is_elsewhere: "off by one",
        into_float32: "another shape or dtype",
        zeros_by_data: "zeros that autograd does not see",
        detaches: "no gradient",
        scales_the_gradient: "a wrong gradient",
        its_own_g: "not what it was given",
        a_g_per_sequence: "more than one g",
        tokens_in_place: "changed what it was given",
        rank_of_the_world: "ranks of the world, not of the group",
        no_group: "the group is not passed on",
        for_two_ranks: "right on two ranks only",
        calls_libs_embedding: "called lib's",
        no_embedding_yet: "not written",
        greater_not_greater_or_equal: "a row that this rank does not have",
        clamps: "no zeros for other ranks' tokens",
        modulo: "no zeros for other ranks' tokens",
        the_last_rank_first: "another token's row",
        leaves_twice: "a mean or a multiple",
        one_vector_after_another: "another shape or dtype",
        gathers_the_table: "not what it was given",
    },
    "vocab_parallel_cross_entropy": {
        softmax_of_its_own: "softmax over the rank's own words",
        without_the_max: "no largest taken off",
        max_as_a_sum: "the max taken as a sum",
        max_at_least_0: "something else overflows",
        max_of_its_own: "each rank its own largest",
        m_off_the_sum_only: "m on one side only",
        a_target_on_every_rank: "the target on the wrong rank",
        target_not_summed: "the target's logit is not summed",
        sum_over_tokens: "the sum, not the mean",
        summed_over_the_ranks_too: "N times",
        a_loss_per_token: "not one number",
        targets_as_they_are: "a row that this rank does not have",
        group_last: "all_reduce's arguments",
        without_graph: "no gradient",
        p_alone: "the target's 1 is missing",
        a_1_on_every_rank: "a 1 on every rank",
        p_of_its_own: "p of the rank's own words",
        ignores_grad: "the scale of the gradient",
        through_the_largest: "a gradient through the largest",
        the_other_sign: "a wrong gradient",
        gathers_the_logits: "logits gathered",
        an_imported_all_reduce: "not what it was given",
        a_fourth_number: "more than three numbers",
        reduces_in_backward: "sends in backward",
        shifts_in_place: "changed what it was given",
        ranks_of_the_world: "ranks of the world, not of the group",
        group_forgotten: "the group is not passed on",
        loss_for_two_ranks: "right on two ranks only",
        calls_libs_loss: "called lib's",
        no_loss_yet: "not written",
        cross_entropy_of_its_own: "softmax over the rank's own words",
        adds_the_logs: "softmax over the rank's own words",
        not_over_tokens: "the scale of the gradient",
        gathers_with_torchs: "logits gathered",
        gathers_by_all_reduce: "logits gathered",
    },
}
RIGHT = {
    "vocab_parallel_embedding": [masks, one_hot_times_weight, a_row_of_zeros_at_the_end],
    "vocab_parallel_cross_entropy": [three_messages, autograd_and_g],
}
