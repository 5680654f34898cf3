"""Runs a module as its plan says: each operator on this rank's shards, and between operators the
collectives that change the layouts.

    plan       x      up       gelu     down      output
    reads      -      COPY     2        2         REPLICATE
    gives      REPL.  2        2        PARTIAL   -
    this rank  x --f--> F.linear --> gelu --> F.linear --g--> y  its rows of up, columns of down

An operator is called as in the traced module, so it does not know that it has only a shard. Only
`reshard` communicates, for results and for weights. Its backward communicates their gradients, so
after `loss.backward()` every gradient is complete.
"""

import copy

import torch.distributed as dist
from torch import fx, nn
from torch.func import functional_call

from lib.hybrid.automatic.layouts import REPLICATE, move, reshard
from lib.hybrid.automatic.strategies import home


class Sharded(nn.Module):
    """This rank's part of a traced module, with the same names, and weights sharded as the plan
    says. A replicated weight gets the gradient that it has in the full module, and a sharded weight
    gets this rank's shard of it.

    traced: a Traced with the same weights on all ranks; it is not changed. plan: a Plan for as many
    ranks as `group` has. Building it sends nothing.
    """

    def __init__(self, traced, plan, group=None):
        super().__init__()
        self.group, self.strategies = group, plan.strategies
        self.traced = copy.deepcopy(traced.module)
        for node in self.traced.graph.nodes:
            if node.op == "call_module":
                layer = self.traced.get_submodule(node.target)
                for name, layout in self.strategies[node.name].weights.items():
                    weight = getattr(layer, name)
                    setattr(
                        layer, name, nn.Parameter(self.own_part(weight.detach(), layout).clone())
                    )

    def own_part(self, weight, layout):
        """The part that this rank stores of a weight that is used in `layout`. Sends nothing."""
        return move(weight, REPLICATE, home(layout), self.group)

    def forward(self, x):
        """x in the plan's layout `given` -> the output in its layout `wanted`.

        Sends: over all ranks `plan.sent` elements in forward and backward together, if x requires a
        gradient.
        """
        found, brought = {}, {}

        def bring(node, layout):
            """The result of `node` in this layout. It is resharded once for all its readers."""
            if (node, layout) not in brought:
                brought[node, layout] = reshard(
                    found[node], self.strategies[node.name].gives, layout, self.group
                )
            return brought[node, layout]

        for node in self.traced.graph.nodes:
            reads = self.strategies[node.name].reads
            args, kwargs = fx.map_arg(
                (node.args, node.kwargs), lambda each, reads=reads: bring(each, reads)
            )
            match node.op:
                case "placeholder":
                    found[node] = x
                case "output":
                    return args[0]
                case "call_module":
                    found[node] = self.call(node, *args)
                case "call_function":
                    found[node] = node.target(*args, **kwargs)
                case "call_method":
                    found[node] = getattr(args[0], node.target)(*args[1:], **kwargs)

    def call(self, node, *args):
        """Call a layer on shards, with its weights in the layouts that its strategy uses."""
        layer, weights = self.traced.get_submodule(node.target), self.strategies[node.name].weights
        used = {
            name: reshard(getattr(layer, name), home(layout), layout, self.group)
            for name, layout in weights.items()
        }
        return functional_call(layer, used, args)

    def gather_gradients(self):
        """{name: gradient} of the full module, on every rank. Sends: an all-gather for each sharded
        weight."""
        whole = {}
        for node in self.traced.graph.nodes:
            for name, layout in self.strategies[node.name].weights.items():
                gradient = getattr(self.traced.get_submodule(node.target), name).grad
                whole[f"{node.target}.{name}"] = move(gradient, home(layout), REPLICATE, self.group)
        return whole

    def extra_repr(self):
        return f"{dist.get_world_size(self.group)} ranks"
