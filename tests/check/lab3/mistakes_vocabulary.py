"""Known mistakes in vocab_parallel_embedding and vocab_parallel_cross_entropy."""

from mistakes import Edit, Mistake, edit


def _all(hint, *answers):
    return [Mistake(hint, answer) for answer in answers]


COVERED = "F.embedding(row, weight).masked_fill(elsewhere.unsqueeze(-1), 0.0)"
CUT = COVERED.replace("weight)", "weight.detach())")
ROW, ELSEWHERE = "    row = ids - rank * rows\n", "elsewhere = (row < 0) | (row >= rows)"
LEFT = "return output_mapping(partial, group)"
EMBEDDING = (
    *_all("no zeros for other ranks' tokens",
          edit(COVERED, "F.embedding(row, weight)"),
          edit(COVERED,
               "F.embedding((tokens - dist.get_rank(group) * len(weight)).clamp(0, len(weight) - "
               "1), weight)"),
          edit(COVERED, "F.embedding(tokens % len(weight), weight)")),
    *_all("another token's row",
          edit(ROW, ROW.replace("rank", "(tp - 1 - rank)")),
          edit(ROW, "    row = torch.where(ids % tp == rank, ids // tp, -1)\n")),
    *_all("off by one",
          edit(ELSEWHERE, "elsewhere = (row <= 0) | (row >= rows)"),
          edit(ELSEWHERE, "elsewhere = (row < 0) | (row >= rows - 1)")),
    *_all("zeros that autograd does not see",
          edit(COVERED, "F.embedding(row, weight)\n    partial.data[elsewhere] = 0.0")),
    Mistake("padding_idx", edit(COVERED, COVERED.replace("weight)", "weight, padding_idx=0)"))),
    Mistake("a row that this rank does not have", edit(ELSEWHERE,
        "elsewhere = (row < 0) | (row > rows)")),
    Mistake("another form", edit(LEFT,
        "return output_mapping(partial.flatten(0, 1), group)")),
    Mistake("not summed", edit(LEFT, "return partial")),
    Mistake("several of it", edit(LEFT, f"{LEFT} / dist.get_world_size(group)")),
    Mistake("several of it", edit(LEFT,
        "return output_mapping(output_mapping(partial, group), group)")),
    Mistake("no gradient", edit(COVERED, CUT)),
    Mistake("a wrong gradient", edit(COVERED, f"2 * {COVERED} - {CUT}")),
    Mistake("other calls", edit(LEFT,
        "return torch.stack([output_mapping(one, group) for one in partial])")),
)  # fmt: skip


def _loss(*changes):
    """The reference's module with these changes, able to travel to the ranks."""
    return Edit((("    @once_differentiable\n", ""), *changes))


MINE = "logits.gather(-1, row.unsqueeze(-1)).squeeze(-1)"
TARGET, MODULO = (
    f"{MINE}.masked_fill(elsewhere, 0.0)",
    MINE.replace("row.", "(targets % logits.shape[-1])."),
)
LARGEST = "all_reduce(largest, group, op=dist.ReduceOp.MAX)"
ZERO, ADDED = "largest = torch.zeros_like(largest)", "all_reduce(largest, group)"
LOG_P = "return -(target.exp() / total).log()"
SUMS, SUMMED, RESULT = (
    "torch.stack([p.sum(-1), target])",
    "all_reduce(sums, group)",
    "return total.log() - target",
)
MEAN = "return REDUCE[reduction](losses[~ignored] if ignored.any() else losses)"
OWN_P, P = "p /= p.sum(-1, keepdim=True)", "p /= total.unsqueeze(-1)"
ONE, ONES = "-grad.masked_fill(elsewhere, 0.0).unsqueeze(-1)", "-grad.unsqueeze(-1)"
DZ = "return dz.to(ctx.dtype), None, None, None"
NOT_SUMMED = "own = sums[{0}].clone()\n        all_reduce(sums, group)\n        sums[{0}] = own"
CROSS_ENTROPY = (
    *_all(
        "softmax over the rank's own words",
        _loss((SUMMED, "pass"), (TARGET, MINE)),
        _loss((SUMMED, "pass")),
        _loss((SUMMED, NOT_SUMMED.format(0))),
        _loss((SUMS, "torch.stack([p.sum(-1).log() + largest, target])"),
              (RESULT, "return total - target - largest")),
        _loss((SUMS, "torch.stack([p.sum(-1).log(), target])"), (RESULT, "return total - target")),
    ),
    *_all("each rank its own largest", _loss((LARGEST, "pass"))),
    *_all("m on one side only",
          _loss((RESULT, "return total.log() - target - largest")),
          _loss((RESULT, "return total.log() - target + largest"))),
    *_all("the target on the wrong rank", _loss((TARGET, MINE)), _loss((TARGET, MODULO)),
          _loss((TARGET, f"torch.where(elsewhere, -largest, {MINE})"))),
    *_all("the target's logit is not summed",
          _loss((SUMMED, NOT_SUMMED.format(1))),
          _loss((SUMMED, NOT_SUMMED.format(1)), (RESULT,
              f"{RESULT} + largest.masked_fill(~elsewhere, 0.0)"))),
    *_all("the target's logit by a maximum",
          _loss((SUMMED, "all_reduce(sums[0], group)\n        "
                         "all_reduce(sums[1], group, op=dist.ReduceOp.MAX)"))),
    *_all("no largest taken off",
          _loss((LARGEST, ZERO)), _loss((LARGEST, ZERO), (RESULT, LOG_P))),
    *_all("the max taken as a sum",
          _loss((LARGEST, ADDED)), _loss((LARGEST, ADDED), (RESULT, LOG_P))),
    *_all("the log of a probability", _loss((RESULT, LOG_P))),
    *_all("something else overflows",
          _loss(("logits.amax(-1)", "logits.amax().expand(logits.shape[:-1]).contiguous()")),
          _loss((LARGEST, LARGEST.replace("MAX", "AVG")))),
    Mistake("more than three elements", _loss((LARGEST,
        f"{LARGEST}\n        all_reduce(logits.sum(-1), group)"))),
    Mistake("the sum, not the mean", _loss((MEAN, MEAN.replace("[reduction]", "['sum']")))),
    Mistake("N times", _loss((MEAN, f"{MEAN} * dist.get_world_size(group)"))),
    Mistake("N times", _loss((MEAN, f"{MEAN} / dist.get_world_size(group)"))),
    *_all("the target's 1 is missing",
          _loss((ONE, "0 * grad.unsqueeze(-1)"))),
    *_all("a 1 on every rank",
          _loss((ONE, ONES))),
    *_all("p of the rank's own words",
          _loss((P, OWN_P)), _loss((P, OWN_P), (ONE, ONES))),
    Mistake("the scale of the gradient", _loss((DZ, f"dz *= grad.numel()\n        {DZ}"))),
    Mistake("the scale of the gradient", _loss((DZ, f"dz /= grad.sum()\n        {DZ}"))),
    *_all(
        "a gradient through the largest",
        _loss(
            ("p = logits.exp()", "ctx.largest = logits == 0\n        p = logits.exp()"),
            (DZ, f"dz -= dz.sum(-1, keepdim=True) * ctx.largest\n        {DZ}"),
        ),
        _loss(
            ("p = logits.exp()",
             "ctx.largest = logits == logits.amax(-1, keepdim=True)\n        p = logits.exp()"),
            (DZ, f"dz -= dz.sum(-1, keepdim=True) * ctx.largest\n        {DZ}"),
        ),
    ),
    Mistake("a wrong gradient", _loss((DZ, DZ.replace("dz", "-dz")))),
)  # fmt: skip
MISTAKES = {"vocab_parallel_embedding": EMBEDDING, "vocab_parallel_cross_entropy": CROSS_ENTROPY}
