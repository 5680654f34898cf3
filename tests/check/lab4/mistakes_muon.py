"""Known mistakes in owners and Muon: edits of lib's code."""

from mistakes import Mistake, edit

REDUCE = "self.reduce(gradient, owner, self.group)\n"
BACK = "self.broadcast(matrix, owner, self.group)"
EACH = "for matrix, gradient in mine:\n            self.update(matrix, gradient)\n"
OWN = "if owner == rank:\n                mine.append((matrix, gradient))"
DROP = "matrix.grad = None\n"
LEAST, LARGEST = "load.index(min(load))", "key=lambda i: -costs[i]"

OWNERS = (
    Mistake("in turn", edit(LEAST, "i % N")),
    Mistake("the smallest first", edit(LARGEST, "key=lambda i: costs[i]")),
    Mistake("as they come", edit(f"sorted(range(len(costs)), {LARGEST})", "range(len(costs))")),
    Mistake(
        "in sorted order",
        edit("owner[i] =",
             "owner[sorted(range(len(costs)), key=lambda j: -costs[j]).index(i)] =").then(
            "load[owner[i]]",
            "load[owner[sorted(range(len(costs)), key=lambda j: -costs[j]).index(i)]]"
        ),
    ),
    Mistake("counted, not weighed", edit("+= costs[i]", "+= 1")),
    Mistake("all on one rank", edit("        load[owner[i]] += costs[i]\n", "")),
    Mistake("no such rank",
            edit(LEAST, f"{LEAST} + 1").then("load[owner[i]] +=", "load[owner[i] - 1] +=")),
)  # fmt: skip

MUON = (
    Mistake("the group is not passed on", edit(REDUCE, "self.reduce(gradient, owner)\n")),
    Mistake("the group is not passed on", edit(BACK, "self.broadcast(matrix, owner)")),
    Mistake("rounded on the way", edit(
        REDUCE, "gradient = self.reduce(gradient.float(), owner, self.group).double()\n")),
    Mistake("a matrix without gradient", edit(
        "torch.zeros_like(matrix) if matrix.grad is None else matrix.grad", "matrix.grad.clone()")),
    Mistake("skips what it did not use", edit(
        "gradient = torch.zeros_like",
        "if matrix.grad is None: continue\n            gradient = torch.zeros_like")),
    Mistake("no reduce", edit(REDUCE, "pass\n")),
    Mistake("another gradient", edit(
        REDUCE, f"gradient.mul_(owner != rank)\n            {REDUCE}")),
    Mistake("updates, then reduces", edit(REDUCE, "pass\n").then(EACH,
        "for matrix, gradient in mine:\n"
        "            self.update(matrix, gradient)\n        for matrix, owner in "
        "zip(self.matrices, self.owner):\n"
        "            self.reduce(matrix, owner, self.group)\n")),
    Mistake("everybody's own rank", edit(REDUCE, "self.reduce(gradient, rank, self.group)\n")),
    Mistake("all on rank 0", edit(REDUCE, "self.reduce(gradient, 0, self.group)\n")),
    Mistake("updated twice", edit(EACH, EACH.replace("mine:", "[*mine, *mine]:"))),
    Mistake("the owner does nothing", edit(EACH, "pass\n")),
    Mistake("not brought back", edit(BACK, "pass")),
    Mistake("not brought back", edit(BACK, "self.broadcast(matrix, 0, self.group)")),
    Mistake("not brought back", edit(BACK, "self.broadcast(matrix.clone(), owner, self.group)")),
    Mistake("not brought back", edit(BACK,
        "self.broadcast(torch.zeros_like(matrix), owner, self.group)")),
    Mistake("one after another", edit(
        OWN,
        f"if owner == rank:\n                self.update(matrix, gradient)\n            {BACK}")
        .then(f"        for matrix, owner in zip(self.matrices, self.owner, strict=True):\n        "
              f"    {BACK}\n", "")
        .then(EACH, "pass\n")),
    Mistake("one after another", edit(
        OWN, "if owner == rank:\n                self.update(matrix, gradient)").then(EACH,
        "pass\n")),
    Mistake("one after another", edit(EACH, "pass\n").then(
        BACK, f"[self.update(m, g) for m, g in mine if m is matrix]\n            {BACK}")),
    Mistake("another matrix's gradient", edit(EACH, EACH.replace(
        "matrix, gradient in mine", "(matrix, _), (_, gradient) in zip(mine, mine[::-1])"))),
    Mistake("one gradient for two matrices", edit(
        "torch.zeros_like(matrix) if",
        "zeros.setdefault(matrix.shape, torch.zeros_like(matrix)) if").then(
        "rank, mine = ", "zeros = {}\n        rank, mine = ")),
    Mistake("gradients of zeros", edit(
        "gradient = torch.zeros_like",
        "matrix.grad = None\n            gradient = torch.zeros_like")),
    Mistake("not what it was given", edit(REDUCE,
        "dist.reduce(gradient, owner, group=self.group)\n")),
    Mistake("momentum everywhere", edit(OWN, "mine.append((matrix, gradient))")),
    Mistake("owners of the world", edit("dist.get_rank(self.group)", "dist.get_rank()")),
    Mistake("gradients not dropped", edit(DROP, "pass\n")),
    Mistake("kept by the owner", edit(DROP,
        "matrix.grad = matrix.grad if owner == rank else None\n")),
)  # fmt: skip

MISTAKES = {"owners": OWNERS, "Muon": MUON}
