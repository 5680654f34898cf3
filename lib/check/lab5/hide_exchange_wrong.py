"""Known mistakes in start_exchange and OverlappedMoE, edits of lib's; no release has this file."""

from lib.check.mistakes import Mistake, edit

# of the module: what start_exchange calls there may be wrong
WHOLE = edit("class _Way:", "class _Way:")
LEAVE, ARRIVE = "return rows.new_empty(0)", "return way.work.wait()  # y = P x"
BACK, HOME = "return ctx.way.work.wait(), None", "ctx.way.work = ctx.way.home(dy.contiguous())"
THERE = "start(all_to_all, rows, group, send_counts, receive_counts)"
RETURN = "return lambda: _Arrive.apply(token, way)"

STARTS = "there_a, there_b = a.start_dispatch(), b.start_dispatch()"
SHARED_A, SHARED_B = "shared_a = self.shared(a.tokens)", "shared_b = self.shared(b.tokens)"
ROWS_A, ROWS_B = "rows = a.experts(there_a())", "rows = b.experts(there_b())"
JOIN = "return torch.cat([shared_a + home_a(), shared_b + home_b()]).view_as(x)"

MISTAKES = {
    "start_exchange": (
        Mistake("waits at once", WHOLE.then(LEAVE, f"way.work.wait()\n        {LEAVE}")),
        Mistake("nothing to wait for", WHOLE.then(RETURN, "return _Arrive.apply(token, way)")),
        Mistake("nothing comes", WHOLE.then(RETURN,
            "return lambda: (_Arrive.apply(token, way), None)[1]")),
        Mistake("backward waits at once", WHOLE.then(HOME, f"{HOME}\n        ctx.way.work.wait()")),
        Mistake(
            "backward begins too late",
            WHOLE.then(HOME, "ctx.way.dy = dy.contiguous()").then(BACK,
                "return ctx.way.home(ctx.way.dy).wait(), None"),
        ),
        Mistake("no gradient", WHOLE.then("_Leave.apply(rows, way)",
            "_Leave.apply(rows.detach(), way)")),
        Mistake("another gradient", WHOLE.then(BACK, "return 2 * ctx.way.work.wait(), None")),
        Mistake("the group is not passed on", WHOLE.then(THERE, THERE.replace("group", "None"))),
        Mistake("the lists the wrong way round",
                WHOLE.then(THERE, THERE.replace("send_counts, receive", "receive_counts, send"))),
        Mistake("backward without the swap",
                WHOLE.then("dy, group, receive_counts, send_counts)",
                    "dy, group, send_counts, receive_counts)")),
        Mistake("rounded on the way", WHOLE.then(ARRIVE,
            "return way.work.wait().float().double()")),
        Mistake("other rows", WHOLE.then(ARRIVE, "return way.work.wait().flip(0)")),
        Mistake("one work for all", WHOLE.then("way = _Way(",
            "way = _Way\n    way.__init__(_Way, ")),
        Mistake("more than the rows", WHOLE.then(LEAVE,
            f"way.there(rows.detach()).wait()\n        {LEAVE}")),
    ),
    "OverlappedMoE": (
        Mistake("nothing returned", edit(JOIN, JOIN.removeprefix("return "))),
        Mistake("halves in each other's place",
                edit(JOIN,
                    "return torch.cat([shared_b + home_b(), shared_a + home_a()]).view_as(x)")),
        Mistake(
            "one after the other",
            edit(STARTS, "there_a = a.start_dispatch()()\n        there_b = b.start_dispatch()()")
            .then("there_a())", "there_a)")
            .then("there_b())", "there_b)")
            .then("home_a = a.start_combine(rows)", "home_a = a.start_combine(rows)()")
            .then("home_b = b.start_combine(rows)", "home_b = b.start_combine(rows)()")
            .then("home_a(), shared_b + home_b()", "home_a, shared_b + home_b"),
        ),
        Mistake(
            "the shared expert after the wait",
            edit(SHARED_A, "pass")
            .then(SHARED_B, "y_a, y_b = home_a(), home_b()")
            .then(JOIN,
                "return torch.cat([self.shared(a.tokens) + y_a, self.shared(b.tokens) + "
                "y_b]).view_as(x)"),
        ),
        Mistake("the shared expert after the wait",
                edit(ROWS_A, "pass").then(SHARED_A, f"{ROWS_A}\n        {SHARED_A}")),
        Mistake("without the shared expert", edit(JOIN,
            "return torch.cat([home_a(), home_b()]).view_as(x)"),
                "y = shared(x) + the mixture: a half's sums and the shared expert of its tokens "
                "are added."),
        Mistake("another gradient", edit(JOIN, JOIN.replace("home_b()", "home_b().detach()"))),
        Mistake("gradients stop", edit(SHARED_A, SHARED_A + ".detach()").then(SHARED_B,
            SHARED_B + ".detach()")),
        Mistake("rounded on the way", edit(JOIN, JOIN.replace("home_b()",
            "home_b().float().double()"))),
        Mistake("another result", edit(JOIN, JOIN.replace("shared_a + home_a()",
            "2 * shared_a + home_a()"))),
    ),
}  # fmt: skip
