"""Known mistakes in exchange_tokens and ExpertParallelMoE, edits of lib's code."""

from mistakes import Mistake, edit

APPLY, CALL = (
    "return _Exchange.apply(",
    "all_to_all(routed_tokens, group, send_counts, receive_counts)",
)
SEND = f"return {CALL}"
# of the module: its backward is the mistaken one, too
WHOLE = edit("class _Exchange(", "class _Exchange(")
BACK = "exchange_tokens(dy, receive_counts, send_counts, *ctx.how)"

LOAD = "load = self.last.load"
THERE, HERE = (
    "transpose_blocks(routed_tokens, received)",
    "transpose_blocks(routed_tokens, received.t())",
)
COUNTS = "exchange_counts(load, self.group, self.all_to_all)"
RUN, HOME = (
    "run_experts(self.experts.values(), routed_tokens, received.sum(0))",
    "self.exchange(routed_tokens, receive_counts, send_counts)",
)

MISTAKES = {
    "exchange_tokens": (
        Mistake("the group is not passed on", edit(SEND, SEND.replace("group", "None"))),
        Mistake("not what it was given", edit(SEND, SEND.replace("all_to_all",
            "collectives.all_to_all"))),
        Mistake("rounded on the way", edit(SEND, SEND.replace("routed_tokens",
            "routed_tokens.float()") + ".double()")),
        Mistake("the lists do not fit",
                edit(SEND, "return all_to_all(routed_tokens, group, receive_counts, send_counts)")),
        Mistake("the lists do not fit", edit(SEND, "return all_to_all(routed_tokens, group)")),
        Mistake("an error in one case", WHOLE.then(APPLY + "routed_tokens",
            APPLY + "torch.stack(list(routed_tokens))")),
        Mistake("a rank skips a call", WHOLE.then(APPLY,
            "return routed_tokens * 1 if not len(routed_tokens) else _Exchange.apply(")),
        Mistake("nothing returned", WHOLE.then(APPLY, APPLY.removeprefix("return "))),
        Mistake("rows in another order", edit(SEND, f"{SEND}.flatten()")),
        Mistake("without a backward",
                WHOLE.then(APPLY + "routed_tokens, send_counts, receive_counts, group, all_to_all)",
                           SEND)),
        Mistake("rows in another order",
                edit(SEND, f"y = {CALL}\n        return torch.cat(y.split(receive_counts)[::-1])")),
        Mistake("arguments changed", edit(SEND,
            f"y = {CALL}\n        routed_tokens.zero_()\n        return y")),
        Mistake("the lists do not fit", edit(BACK,
            "exchange_tokens(dy, send_counts, receive_counts, *ctx.how)")),
        Mistake("backward sends nothing", edit(BACK,
            "dy.new_zeros(sum(send_counts), dy.shape[1])")),
        Mistake("gradient scaled", edit(BACK, f"{BACK} / len(send_counts)")),
        Mistake("another gradient", edit(BACK, f"{BACK}.flip(0)")),
        Mistake(
            "counts of another exchange",
            edit("ctx.counts, ctx.how =", "_Exchange.counts, ctx.how =").then("= ctx.counts\n",
                "= _Exchange.counts\n"),
        ),
        Mistake("more than necessary", edit(SEND, f"{CALL}\n        {SEND}")),
        Mistake("no gradient wanted", WHOLE.then(APPLY + "routed_tokens",
            APPLY + "routed_tokens.requires_grad_()")),
        Mistake("a rank skips a call",
                WHOLE.then(APPLY,
                           "return routed_tokens * 1 if len(send_counts) == 1 else "
                           "_Exchange.apply(")),
    ),
    "ExpertParallelMoE": (
        Mistake("counts not exchanged", edit(COUNTS,
            "load.view(dist.get_world_size(self.group), -1)")),
        Mistake("the group is not passed on", edit(COUNTS,
            "exchange_counts(load, None, self.all_to_all)")),
        Mistake("the group is not passed on", edit(COUNTS, "exchange_counts(load)")),
        Mistake("not what it was given", edit(COUNTS, "exchange_counts(load, self.group)")),
        Mistake("counts of an earlier call",
                edit(f"received = {COUNTS}", f"self.seen = received = getattr(self, 'seen', None)\n"
                     f"        if received is None:\n            self.seen = received = {COUNTS}")),
        Mistake("experts in another order",
                edit("self.experts.values()",
                     "[self.experts[name] for name in sorted(self.experts)]")),  # "10" before "9"
        Mistake("more than necessary", edit(COUNTS, f"{COUNTS} + 0 * {COUNTS}")),
        Mistake("another rank's counts", edit("load.view_as(received).sum(1)",
            "load.view(-1, len(received)).sum(0)")),
        Mistake("another rank's counts", edit(HOME,
            "self.exchange(routed_tokens, send_counts, receive_counts)")),
        Mistake("a rank skips a call", edit(LOAD,
            f"if not len(routed_tokens):\n            return routed_tokens\n        {LOAD}")),
        Mistake("rows of other experts", edit("received.sum(0)",
            "load.view_as(received)[dist.get_rank(self.group)]")),
        Mistake("another rank's counts", edit("received.sum(0)", "received.sum(1)")),
        Mistake("experts get each other's rows",
                edit(THERE, "routed_tokens").then(HERE, "routed_tokens")),
        Mistake("experts get each other's rows", edit(THERE, "routed_tokens")),
        Mistake("sent home in the experts' order", edit(HERE, "routed_tokens")),
        Mistake("transposed the wrong way", edit(THERE, HERE)),
        Mistake("transposed the wrong way", edit(HERE, THERE)),
        Mistake("transposed the wrong way", edit(f"{HERE}  #", f"{THERE} #").then(f"{THERE}  #",
            f"{HERE}  #")),
        Mistake("dropped pairs counted", edit(LOAD, "load = self.last.requested")),
        Mistake("through no expert", edit(RUN, "routed_tokens")),
        Mistake("not through all experts",
                edit(RUN, "next(iter(self.experts.values()))(routed_tokens)")),
        Mistake("another result", edit(RUN, f"{RUN}.flip(0)")),
        Mistake("rounded on the way", edit(HOME,
            "self.exchange(routed_tokens.float(), receive_counts, send_counts).double()")),
        Mistake("gradients stop",
                edit(THERE, "transpose_blocks(routed_tokens.detach(), received)")),
        Mistake("gradient scaled",
                edit(RUN,
                     f"{RUN}\n        N, its = len(received), routed_tokens\n"
                     f"        routed_tokens = its / N + (1 - 1 / N) * its.detach()")),
        Mistake("another gradient", edit(RUN,
            f"{RUN}\n        routed_tokens = 0.3 * routed_tokens + 0.7 * routed_tokens.detach()")),
    ),
}  # fmt: skip
