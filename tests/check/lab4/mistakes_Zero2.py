"""Known mistakes of Zero2, each named after its cause."""

from mistakes import Mistake, edit

SENT = "collectives.start(self.reduce_scatter, flat.flatten_gradients(), flat.group)"
ROOM = "self._finish_oldest()\n        flat = "
WAIT = "        while self.in_flight:\n            self._finish_oldest()\n"
HOOKS = "        self._begin_backward()\n        when_gradient_is_ready"
MISTAKES = (
    Mistake("the group is not passed on", edit(SENT, SENT.replace(", flat.group", ""))),
    Mistake("averaged twice", edit(SENT, SENT.replace("()", "() / flat.world_size"))),
    Mistake("not averaged", edit(SENT, SENT.replace("()", "() * flat.world_size"))),
    Mistake("rounded on the way",
        edit(
            SENT, SENT.replace("self.reduce_scatter",
                "lambda x, group: self.reduce_scatter(x.float(), group).double()")
        )),
    Mistake("not the one it was given", edit(SENT, SENT.replace("self.", "collectives."))),
    Mistake("beyond the last flat", edit("while self.n_sent < len(self.in_order) and ", "while ")),
    Mistake("the rest is not sent",
            edit("        while self.n_sent < len(self.in_order):\n            self._send_next()\n",
                 "")),
    Mistake("does not wait", edit(WAIT, "")),
    Mistake("does not wait", edit(WAIT, WAIT.replace("while", "if"))),
    Mistake(
        "overwritten by the next micro-batch", edit("flat.add_gradient(work.wait())",
            "flat.shard.grad = work.wait()")),
    Mistake("everything at the end", edit("            self._send_next()\n\n",
        "            break\n\n")),
    Mistake(
        "one at a time", edit("while self.n_sent < len(self.in_order) and ",
            "if self.n_sent < len(self.in_order) and ")),
    Mistake("backward waits for the network",
            edit("self.n_sent += 1", "self.n_sent += 1\n        self.in_flight[-1][1].wait()")),
    Mistake("one in flight", edit("== MAX_IN_FLIGHT", "== 1")),
    Mistake("not for the oldest", edit("popleft()", "pop()")),
    Mistake("not for the oldest", edit(ROOM, f"self._finish_oldest()\n            {ROOM}")),
    Mistake("three in flight", edit("== MAX_IN_FLIGHT", "== 9")),
    Mistake("three in flight", edit("== MAX_IN_FLIGHT", "> MAX_IN_FLIGHT")),
    Mistake("three in flight", edit("        if len(self.in_flight)",
            "        buffer = self.in_order[self.n_sent].flatten_gradients()\n        if "
            "len(self.in_flight)")
            .then("flat.flatten_gradients()", "buffer")),
    Mistake("three in flight", edit("        flat = self.in_order[self.n_sent]\n",
        "        flat = self.in_order[self.n_sent]\n"
        "        self.kept = [*getattr(self, 'kept', []), flat.flatten_gradients()]\n").then(
        SENT, SENT.replace("flat.flatten_gradients()", "self.kept[-1]")).then(
        "        self.n_sent = 0  #", "        self.kept = []\n        self.n_sent = 0  #")),
    Mistake("one at a time", edit("while self.n_sent < len(self.in_order) and ",
        "while self.n_sent < len(self.in_order) - 1 and ")),
    Mistake("buffers kept for all flats",
        edit(HOOKS, f"        self.buffers = [f.full.clone() for f in self.in_order]\n{HOOKS}")),
)  # fmt: skip
