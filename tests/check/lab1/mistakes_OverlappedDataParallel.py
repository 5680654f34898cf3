"""Known mistakes in OverlappedDataParallel: edits of lib's code."""

from mistakes import Mistake, edit

PLAN, N = "plan_tapered_buckets(self.trained(), capacity)", "dist.get_world_size(self.group)"
START = "self.start(self.all_reduce, self.flat_buffers[len(self.works)], self.group)"
HOOK = "when_gradient_is_ready(self.bucket_of, self._gradient_is_ready)"
REST = "self._fill_slot(parameter)\n            self._start_next()"
MISTAKES = (
    Mistake(
        "weights not made equal",
        edit(
            "super().__init__(module, group, all_reduce)",
            "torch.nn.Module.__init__(self); self.module, self.group, self.all_reduce = module, "
            "group, all_reduce",
        ),
    ),
    Mistake("the world's size, not the group's", edit(N, "dist.get_world_size()")),
    Mistake("the group is not passed on", edit(START, START.replace("self.group", "None"))),
    Mistake("not divided", edit(f"torch.div(parameter.grad, {N}, out=slot)",
        "slot.copy_(parameter.grad)")),
    Mistake("divided twice", edit("parameter.grad = slot", f"parameter.grad = slot / {N}")),
    Mistake("copied back too early",
            edit("        for work in self.works:\n",
                 "        early = [flat.clone() for flat in self.flat_buffers]\n"
                 "        for work in self.works:\n")
            .then("parameter.grad = slot\n",
                  "parameter.grad = slot\n"
                  "        [*map(torch.Tensor.copy_, self.flat_buffers, early)]\n")),
    Mistake("does not wait", edit("work.wait()", "pass")),
    Mistake("does not wait", edit("for work in self.works:", "for work in self.works[:1]:")),
    Mistake("left over from the step before",
            edit("parameter.grad = slot\n        self._begin_step()", "parameter.grad = slot")),
    Mistake("what is left is not sent", edit(PLAN, f"{PLAN}[:-1]")),
    Mistake("one message per parameter", edit(PLAN, "[[p] for p in self.trained()[::-1]]")),
    Mistake("more than `capacity`", edit(PLAN, "[self.trained()[::-1]]")),
    Mistake("buckets in the order of forward", edit(PLAN, PLAN.replace("()", "()[::-1]"))),
    Mistake("everything at the end", edit(HOOK, "pass")),
    Mistake("backward waits for the network",
            edit("self.start = start",
                 "self.start = lambda fn, *args: (fn(*args), start(lambda: None))[1]")),
    Mistake("backward waits for the network",
            edit("self.works.append(\n", "[work.wait() for work in self.works]\n"
                 "        self.works.append(\n")),
    Mistake("not what it was given", edit(START, START.replace("self.all_reduce",
        "collectives.all_reduce"))),
    Mistake("no_sync still sends", edit("self.syncs = self.syncs, False",
        "self.syncs = self.syncs, self.syncs")),
    Mistake("accumulated, and not sent", edit(REST,
        f"parameter.grad = None\n                {REST}")),
    Mistake("no_sync for ever", edit("self.syncs = before", "pass")),
)  # fmt: skip
