"""Known mistakes in start_exchange and OverlappedMoE, edits of lib's code."""

from mistakes import Mistake, edit

# of the module: what start_exchange calls there may be wrong
WHOLE = edit("class _Way:", "class _Way:")
LEAVE, ARRIVE = "return routed_tokens.new_empty(0)", "return way.work.wait()  # y = P x"
BACK, HOME = "return ctx.way.work.wait(), None", "ctx.way.work = ctx.way.backward(dy.contiguous())"
THERE = "all_to_all, routed_tokens, group, send_counts, receive_counts"
RETURN = "return lambda: _Arrive.apply(tie, way)"

STARTS = "dispatched_a, dispatched_b = a.start_dispatch(), b.start_dispatch()"
SHARED_A, SHARED_B = "shared_a = self.shared(a.tokens)", "shared_b = self.shared(b.tokens)"
OUTPUTS_A, OUTPUTS_B = "outputs = a.experts(dispatched_a())", "outputs = b.experts(dispatched_b())"
JOIN = "return torch.cat([shared_a + combined_a(), shared_b + combined_b()]).view_as(x)"

MISTAKES = {
    "start_exchange": (
        Mistake("waits at once", WHOLE.then(LEAVE, f"way.work.wait()\n        {LEAVE}")),
        Mistake("nothing to wait for", WHOLE.then(RETURN, "return _Arrive.apply(tie, way)")),
        Mistake("nothing comes", WHOLE.then(RETURN,
            "return lambda: (_Arrive.apply(tie, way), None)[1]")),
        Mistake("backward waits at once", WHOLE.then(HOME, f"{HOME}\n        ctx.way.work.wait()")),
        Mistake(
            "backward begins too late",
            WHOLE.then(HOME, "ctx.way.dy = dy.contiguous()").then(BACK,
                "return ctx.way.backward(ctx.way.dy).wait(), None"),
        ),
        Mistake("without a backward", WHOLE.then("_Leave.apply(routed_tokens, way)",
            "_Leave.apply(routed_tokens.detach(), way)")),
        Mistake("no gradient wanted", WHOLE.then("_Leave.apply(routed_tokens, way)",
            "_Leave.apply(routed_tokens.requires_grad_(), way)")),
        Mistake("another gradient", WHOLE.then(BACK, "return 2 * ctx.way.work.wait(), None")),
        Mistake("the group is not passed on", WHOLE.then(THERE, THERE.replace("group", "None"))),
        Mistake("the lists do not fit",
                WHOLE.then(THERE, THERE.replace("send_counts, receive", "receive_counts, send"))),
        Mistake("the lists do not fit",
                WHOLE.then("dy, group, receive_counts, send_counts)",
                           "dy, group, send_counts, receive_counts)")),
        Mistake("rounded on the way", WHOLE.then(ARRIVE,
            "return way.work.wait().float().double()")),
        Mistake("other rows", WHOLE.then(ARRIVE, "return way.work.wait().flip(0)")),
        Mistake("one work for all", WHOLE.then("way = _Way(",
            "way = _Way\n    way.__init__(_Way, ")),
        Mistake("not contiguous", WHOLE.then(HOME, HOME.replace(".contiguous()", ""))),
        Mistake("more than necessary", WHOLE.then(LEAVE,
            f"way.forward(routed_tokens.detach()).wait()\n        {LEAVE}")),
    ),
    "OverlappedMoE": (
        Mistake("nothing returned", edit(JOIN, JOIN.removeprefix("return "))),
        Mistake("halves in each other's place",
                edit(JOIN,
                     "return torch.cat([shared_b + combined_b(), shared_a + "
                     "combined_a()]).view_as(x)")),
        Mistake(
            "one after the other",
            edit(STARTS, "dispatched_a = a.start_dispatch()()\n"
                 "        dispatched_b = b.start_dispatch()()")
            .then("dispatched_a())", "dispatched_a)")
            .then("dispatched_b())", "dispatched_b)")
            .then("a.start_combine(outputs)", "a.start_combine(outputs)()")
            .then("b.start_combine(outputs)", "b.start_combine(outputs)()")
            .then("combined_a(), shared_b + combined_b()", "combined_a, shared_b + combined_b"),
        ),
        Mistake(
            "the shared expert after the wait",
            edit(SHARED_A, "pass")
            .then(SHARED_B, "y_a, y_b = combined_a(), combined_b()")
            .then(JOIN,
                  "return torch.cat([self.shared(a.tokens) + y_a, self.shared(b.tokens) + "
                  "y_b]).view_as(x)"),
        ),
        Mistake("the shared expert after the wait",
                edit(OUTPUTS_A, "pass").then(SHARED_A, f"{OUTPUTS_A}\n        {SHARED_A}")),
        Mistake("without the shared expert",
                edit(JOIN, "return torch.cat([combined_a(), combined_b()]).view_as(x)")),
        Mistake("another gradient", edit(JOIN, JOIN.replace("combined_b()",
            "combined_b().detach()"))),
        Mistake("gradients stop", edit(SHARED_A, SHARED_A + ".detach()").then(SHARED_B,
            SHARED_B + ".detach()")),
        Mistake("rounded on the way", edit(JOIN, JOIN.replace("combined_b()",
            "combined_b().float().double()"))),
        Mistake("another result", edit(JOIN, JOIN.replace("shared_a + combined_a()",
            "2 * shared_a + combined_a()"))),
    ),
}  # fmt: skip
