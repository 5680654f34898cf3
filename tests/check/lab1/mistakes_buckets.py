"""Known mistakes in plan_buckets and reduce_bucket: edits of lib's code."""

from mistakes import Mistake, edit

REVERSED = "parameters = list(parameters)[::-1]"
WITHOUT_A_BUCKET = "if kind not in open_bucket or nbytes > room[kind]:"
ONE_ROOM = (
    "if nbytes > room.get(0, 0):\n            open_bucket.clear()\n            room[0] = capacity\n"
    "        if kind not in open_bucket:"
)
LARGE_ONES = (
    "if nbytes > capacity:\n            buckets.append([parameter])\n"
    "            last[id(buckets[-1])] = place\n            continue\n        "
)
SIZES = "parameter.numel() * parameter.element_size() for parameter in parameters"

PLAN_BUCKETS = (
    Mistake("the large ones left out",
            edit(REVERSED, "parameters = [p for p in parameters if p.nbytes <= capacity][::-1]")),
    Mistake("forward order", edit(REVERSED, "parameters = list(parameters)")),
    Mistake("the order of the buckets", edit("sorted(buckets, key=lambda bucket: last[id(bucket)])",
        "buckets")),
    Mistake("elements for bytes", edit(SIZES, "parameter.numel() for parameter in parameters")),
    Mistake("elements for bytes", edit(SIZES, "4 * parameter.numel() for parameter in parameters")),
    Mistake("looked too late", edit("nbytes > room[kind]", "room[kind] <= 0")),
    Mistake("room not counted anew", edit("room[kind] -= nbytes", "pass")),
    Mistake("dtypes mixed", edit("kind = (parameter.dtype, parameter.device)", "kind = None")),
    Mistake("dtypes mixed", edit("kind = (parameter.dtype, parameter.device)",
        "kind = parameter.element_size()")),
    Mistake("closed by another dtype", edit(WITHOUT_A_BUCKET, ONE_ROOM).then(
        "open_bucket[kind], room[kind] = [], capacity_of(to_come)", "open_bucket[kind] = []").then(
        "room[kind] -= nbytes", "room[0] -= nbytes")),
    Mistake("filled up later", edit(WITHOUT_A_BUCKET, f"{LARGE_ONES}{WITHOUT_A_BUCKET}")),
    Mistake("frozen ones left out", edit(REVERSED,
        "parameters = [p for p in parameters if p.requires_grad][::-1]")),
    Mistake("one each", edit(WITHOUT_A_BUCKET, "if True:")),
    Mistake("closed too early", edit("nbytes > room[kind]", "nbytes >= room[kind]")),
    Mistake("turned round in place", edit(REVERSED, "parameters.reverse()")),
)  # fmt: skip
DIVIDE, UNFLATTEN = "flat /= dist.get_world_size(group)", "unflatten(flat, gradients)"
GRADIENTS = "[gradient(parameter) for parameter in parameters]"
REDUCE_BUCKET = (
    Mistake("not divided", edit(DIVIDE, "pass")),
    Mistake("divided twice", edit(DIVIDE, "flat /= dist.get_world_size(group) ** 2")),
    Mistake("the world's size, not the group's", edit(DIVIDE, "flat /= dist.get_world_size()")),
    Mistake("another divisor", edit(DIVIDE, "flat /= len(parameters)")),
    Mistake("never written back", edit(UNFLATTEN, "pass")),
    Mistake("pieces in the wrong places", edit(UNFLATTEN, "unflatten(flat, gradients[::-1])")),
    Mistake("the parameter for its gradient", edit("flat = flatten(gradients)",
        "flat = flatten(parameters)")),
    Mistake("the parameter for its gradient", edit(UNFLATTEN,
        "unflatten(flat, gradients); parameters[0].add_(1)")),
    Mistake("sizes that differ between ranks",
            edit(GRADIENTS,
                 "[parameter.grad for parameter in parameters if parameter.grad is not None]")),
    Mistake("a parameter without gradient", edit(GRADIENTS,
        "[parameter.grad for parameter in parameters]")),
    Mistake("what all_reduce returns", edit("all_reduce(flat, group)",
        "flat = all_reduce(flat, group)")),
    Mistake("the group is not passed on", edit("all_reduce(flat, group)", "all_reduce(flat)")),
    Mistake("an op for it", edit("all_reduce(flat, group)",
        "all_reduce(flat, group, op=dist.ReduceOp.AVG)")),
    Mistake("not what it was given", edit("all_reduce(flat, group)",
        "collectives.all_reduce(flat, group)")),
    Mistake("zeros of another dtype", edit(GRADIENTS,
        "[torch.zeros(p.shape) if p.grad is None else p.grad for p in parameters]").then(UNFLATTEN,
        "for p, part in zip(parameters, flat.split([p.numel() for p in parameters])):\n"
        "        p.grad = part.view_as(p).to(p.dtype)")),
    Mistake("rounded on the way", edit("flat = flatten(gradients)",
        "flat = flatten(gradients).float()")),
)  # fmt: skip
MISTAKES = {"plan_buckets": PLAN_BUCKETS, "reduce_bucket": REDUCE_BUCKET}
