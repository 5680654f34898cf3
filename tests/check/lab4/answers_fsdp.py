"""Answers to Lab 4's fsdp, class by class: wrong ones, each with the hint that it must get, and right ones.

The wrong ones differ from `AsInTheNotebook`, or `When`, right ones, in one method.
"""

import torch
import torch.distributed as dist
from as_an_answer import as_an_answer

from lib import collectives, zero
from lib.zero import fsdp as libs_fsdp
from lib.zero import unit as libs_unit


class AsInTheNotebook(zero.Unit):
    def unshard(self):
        for flat in self.flats:
            self.gather(flat)
        self.is_unsharded = True

    def gather(self, flat):
        flat.whole.untyped_storage().resize_(flat.padded * flat.whole.element_size())
        with torch.no_grad():
            flat.whole.copy_(self.all_gather(flat.shard.detach(), flat.group))
        flat.attach()

    def reshard(self):
        for flat in self.flats:
            self.free(flat)
        self.is_unsharded = False

    def free(self, flat):
        for parameter in flat.parameters:
            parameter.data = flat.shard.detach()[:0]
        flat.whole.untyped_storage().resize_(0)

    def reduce_gradients(self):
        for flat in self.flats:
            if flat.trained:
                self.reduce(flat)

    def reduce(self, flat):
        flat.add_gradient(self.reduce_scatter(flat.take_gradients(), flat.group))


# Unit: wrong


class InheritsReshard(zero.Unit):
    unshard, gather = AsInTheNotebook.unshard, AsInTheNotebook.gather
    reduce_gradients, reduce = AsInTheNotebook.reduce_gradients, AsInTheNotebook.reduce


class AsksLibs(AsInTheNotebook):
    def unshard(self):
        super(AsInTheNotebook, self).unshard()


class InTheWorld(AsInTheNotebook):
    def gather(self, flat):
        flat.whole.untyped_storage().resize_(flat.padded * flat.whole.element_size())
        flat.whole.copy_(self.all_gather(flat.shard.detach()))
        flat.attach()


class ElementsForBytes(AsInTheNotebook):
    def gather(self, flat):
        flat.whole.untyped_storage().resize_(flat.padded)
        flat.whole.copy_(self.all_gather(flat.shard.detach(), flat.group))
        flat.attach()


class IntoNothing(AsInTheNotebook):
    def gather(self, flat):
        flat.whole.copy_(self.all_gather(flat.shard.detach(), flat.group))
        flat.attach()


class NoMemoryAtAll(AsInTheNotebook):
    """What came is thrown away."""

    def gather(self, flat):
        self.all_gather(flat.shard.detach(), flat.group)


class AnotherWhole(AsInTheNotebook):
    def gather(self, flat):
        flat.whole = self.all_gather(flat.shard.detach(), flat.group)
        flat.attach()


class FreesByAnother(AsInTheNotebook):
    def free(self, flat):
        super().free(flat)
        flat.whole = flat.whole.new_empty(0)


class NotAttached(AsInTheNotebook):
    def gather(self, flat):
        flat.whole.untyped_storage().resize_(flat.padded * flat.whole.element_size())
        flat.whole.copy_(self.all_gather(flat.shard.detach(), flat.group))


class CopiesOfIt(AsInTheNotebook):
    def gather(self, flat):
        super().gather(flat)
        for parameter in flat.parameters:
            parameter.data = parameter.data.clone()


class GathersOnce(AsInTheNotebook):
    """Keeps what it has gathered the first time."""

    def gather(self, flat):
        flat.whole.untyped_storage().resize_(flat.padded * flat.whole.element_size())
        if not hasattr(flat, "kept"):
            flat.kept = self.all_gather(flat.shard.detach(), flat.group)
        flat.whole.copy_(flat.kept)
        flat.attach()


class OwnShardEverywhere(AsInTheNotebook):
    def gather(self, flat):
        super().gather(flat)
        flat.whole.copy_(flat.shard.detach().repeat(dist.get_world_size(flat.group)))


class NoFlag(AsInTheNotebook):
    def unshard(self):
        for flat in self.flats:
            self.gather(flat)


class FlagStays(AsInTheNotebook):
    def reshard(self):
        for flat in self.flats:
            self.free(flat)
        self.is_unsharded = getattr(self, "is_unsharded", False)


class Overwrites(AsInTheNotebook):
    def reduce(self, flat):
        flat.shard.grad = self.reduce_scatter(flat.take_gradients(), flat.group)


class DividesAgain(AsInTheNotebook):
    def reduce(self, flat):
        piece = self.reduce_scatter(flat.take_gradients(), flat.group)
        flat.add_gradient(piece / dist.get_world_size(flat.group))


class Sums(AsInTheNotebook):
    def reduce(self, flat):
        line = flat.take_gradients() * dist.get_world_size(flat.group)
        flat.add_gradient(self.reduce_scatter(line, flat.group))


class NotReduced(AsInTheNotebook):
    """Its own gradient's piece, whatever the others have."""

    def reduce(self, flat):
        line = flat.take_gradients()
        self.reduce_scatter(line, flat.group)
        flat.add_gradient(line.chunk(dist.get_world_size(flat.group))[dist.get_rank(flat.group)].clone())


class GradientsAsTheyAre(AsInTheNotebook):
    """Written by hand: an unused parameter has none, and there is padding."""

    def reduce(self, flat):
        line = flat.whole.new_zeros(flat.padded)
        line[: flat.n] = torch.cat([parameter.grad.flatten() for parameter in flat.parameters])
        flat.add_gradient(self.reduce_scatter(line / dist.get_world_size(flat.group), flat.group))


class NotPadded(AsInTheNotebook):
    def reduce(self, flat):
        flat.add_gradient(self.reduce_scatter(flat.take_gradients()[: flat.n], flat.group))


class KeepsThePiece(AsInTheNotebook):
    """The piece goes nowhere."""

    def reduce(self, flat):
        self.reduce_scatter(flat.take_gradients(), flat.group)


class WholeGradientsStay(AsInTheNotebook):
    def reduce(self, flat):
        line, begin = flat.whole.new_zeros(flat.padded), 0
        for parameter in flat.parameters:
            if parameter.grad is not None:
                line[begin : begin + parameter.numel()] = parameter.grad.flatten()
            begin += parameter.numel()
        flat.add_gradient(self.reduce_scatter(line / dist.get_world_size(flat.group), flat.group))


class OnlyWhatIsUsed(AsInTheNotebook):
    """A flat that this rank did not use does not leave."""

    def reduce(self, flat):
        if any(parameter.grad is not None for parameter in flat.parameters):
            super().reduce(flat)


class FreesNothing(AsInTheNotebook):
    def free(self, flat):
        for parameter in flat.parameters:
            parameter.data = flat.shard.detach()[:0]


class LeavesParametersThere(AsInTheNotebook):
    def free(self, flat):
        flat.whole.untyped_storage().resize_(0)


class ShardsOfTheWhole(AsInTheNotebook):
    """The shard is a view of the whole again, and goes with it."""

    def free(self, flat):
        rank, N = dist.get_rank(flat.group), dist.get_world_size(flat.group)
        flat.shard = flat.whole.chunk(N)[rank].detach().requires_grad_(flat.trained)
        super().free(flat)


class FrozenToo(AsInTheNotebook):
    def reduce_gradients(self):
        for flat in self.flats:
            line = flat.take_gradients()
            piece = self.reduce_scatter(line, flat.group)
            if flat.trained:
                flat.add_gradient(piece)


class ReducesAndGathers(AsInTheNotebook):
    """An all-reduce: each rank gets the whole, and takes its piece."""

    def reduce(self, flat):
        N, rank = dist.get_world_size(flat.group), dist.get_rank(flat.group)
        piece = self.reduce_scatter(flat.take_gradients(), flat.group)
        flat.add_gradient(self.all_gather(piece, flat.group).chunk(N)[rank].clone())


class InOneLine(AsInTheNotebook):
    """All flats' gradients in one line, rank by rank."""

    def reduce_gradients(self):
        flats = [flat for flat in self.flats if flat.trained]
        if flats:
            N = dist.get_world_size(flats[0].group)
            chunks = zip(*(flat.take_gradients().chunk(N) for flat in flats), strict=True)
            line = torch.cat([chunk for of_rank in chunks for chunk in of_rank])
            piece = self.reduce_scatter(line, flats[0].group)
            for flat, part in zip(flats, piece.split([flat.padded // N for flat in flats]), strict=True):
                flat.add_gradient(part.clone())


class ByTorchsOwn(AsInTheNotebook):
    def gather(self, flat):
        flat.whole.untyped_storage().resize_(flat.padded * flat.whole.element_size())
        self.all_gather(flat.shard.detach(), flat.group)
        flat.whole.copy_(collectives.all_gather(flat.shard.detach(), flat.group))
        flat.attach()


class NotWrittenUnit(zero.Unit):
    def unshard(self):
        raise NotImplementedError

    reshard = reduce_gradients = unshard


# Unit: right


class InPlace(AsInTheNotebook):
    """Gathered where it belongs; all memory first; gradients from the back."""

    def unshard(self):
        for flat in reversed(self.flats):
            flat.whole.untyped_storage().resize_(flat.padded * flat.shard.element_size())
            flat.attach()
        self.is_unsharded = True
        for flat in self.flats:
            self.all_gather(flat.shard, flat.group, out=flat.whole)

    def free(self, flat):
        flat.whole.untyped_storage().resize_(0)
        for parameter in flat.parameters:
            parameter.data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)

    def reduce(self, flat):
        line, begin = torch.zeros(flat.padded, dtype=flat.shard.dtype, device=flat.shard.device), 0
        for parameter, slot in zip(flat.parameters, flat.slots, strict=True):
            if parameter.grad is not None:
                line[begin : begin + slot.numel()] = parameter.grad.reshape(-1)
            begin, parameter.grad = begin + slot.numel(), None
        piece = self.reduce_scatter(line, flat.group) / dist.get_world_size(flat.group)
        flat.shard.grad = piece if flat.shard.grad is None else flat.shard.grad + piece


class When(zero.FSDP):
    def before_forward(self, place):
        self.units[place].unshard()

    def after_forward(self, place):
        self.units[place].reshard()

    def before_backward(self, place):
        self.units[place].unshard()

    def after_backward(self, place):
        self.units[place].reduce_gradients()
        self.units[place].reshard()


# FSDP: wrong


class InheritsOne(zero.FSDP):
    before_forward, after_forward, before_backward = When.before_forward, When.after_forward, When.before_backward


class AsksLibsFSDP(When):
    def before_forward(self, place):
        super(When, self).before_forward(place)


class NotBeforeForward(When):
    def before_forward(self, place):
        pass


class NotBeforeBackward(When):
    def before_backward(self, place):
        pass


class BackwardOfTheOneBefore(When):
    def before_backward(self, place):
        self.units[place - 1].unshard()


class GathersOnceForAll(When):
    """And never frees it."""

    def before_forward(self, place):
        if not self.units[place].is_unsharded:
            self.units[place].unshard()

    def after_forward(self, place):
        pass

    def before_backward(self, place):
        pass

    def after_backward(self, place):
        self.units[place].reduce_gradients()


class NotReducedAtAll(When):
    def after_backward(self, place):
        self.units[place].reshard()


class ReducedTooEarly(When):
    def before_backward(self, place):
        self.units[place].unshard()
        self.units[place].reduce_gradients()

    def after_backward(self, place):
        self.units[place].reshard()


class ReducesTheRoot(When):
    """Every time anew, and its sum is gone: the other units keep theirs."""

    def after_backward(self, place):
        self.units[place].reduce_gradients()
        for flat in self.units[place].trained:
            flat.shard.grad *= 2
        self.units[place].reshard()


class KeepsTheLastTwo(When):
    """Freed one unit later."""

    def after_forward(self, place):
        if place > 0:
            self.units[place - 1].reshard()


class StaysAfterForward(When):
    def after_forward(self, place):
        pass


class StaysAfterBackward(When):
    def after_backward(self, place):
        self.units[place].reduce_gradients()


class AllFromTheBegin(When):
    def before_forward(self, place):
        if place == 0:
            for unit in self.units:
                unit.unshard()


class KeepsTheFirst(When):
    """Unit 0 stays whole to the end; its backward comes last."""

    def after_backward(self, place):
        self.units[place].reduce_gradients()
        if place > 0:
            self.units[place].reshard()


class GathersAgain(When):
    def before_backward(self, place):
        self.units[place].unshard()
        self.units[place].unshard()


class KeepsTheLast(When):
    """The last unit's backward comes next: it is not freed between, where there will be one."""

    def after_forward(self, place):
        if place < len(self.units) - 1 or not torch.is_grad_enabled():
            self.units[place].reshard()

    def before_backward(self, place):
        if not self.units[place].is_unsharded:
            self.units[place].unshard()


class ReducesTwice(When):
    def after_backward(self, place):
        self.units[place].reduce_gradients()
        self.units[place].reduce_gradients()
        self.units[place].reshard()


class AllReducesBeside(When):
    def after_backward(self, place):
        super().after_backward(place)
        dist.all_reduce(torch.zeros(1, dtype=torch.float64), group=self.group)


class NotWrittenFSDP(zero.FSDP):
    def before_forward(self, place):
        raise NotImplementedError

    after_forward = before_backward = after_backward = before_forward


# FSDP: right


class FreedFirst(zero.FSDP):
    """The weights go before the gradients leave; helpers of its own."""

    def _gather(self, place):
        unit = self.units[place]
        if not unit.is_unsharded:
            unit.unshard()

    def before_forward(self, place):
        self._gather(place)

    def before_backward(self, place):
        self._gather(place)

    def after_forward(self, place):
        list(self.units)[place].reshard()

    def after_backward(self, place):
        unit = self.units[place]
        unit.reshard()
        unit.reduce_gradients()


WRONG = {
    "Unit": {
        InheritsReshard: "called lib's",
        AsksLibs: "called lib's",
        InTheWorld: "the group is not passed on",
        ElementsForBytes: "elements for bytes",
        IntoNothing: "no memory to gather into",
        NoMemoryAtAll: "no memory to gather into",
        AnotherWhole: "another tensor for the whole",
        FreesByAnother: "another tensor for the whole",
        NotAttached: "not attached",
        CopiesOfIt: "not attached",
        GathersOnce: "gathered once",
        OwnShardEverywhere: "another part gathered",
        NoFlag: "the flag",
        FlagStays: "the flag",
        Overwrites: "overwritten",
        DividesAgain: "averaged twice",
        Sums: "a sum, no mean",
        NotReduced: "another rank's gradient",
        GradientsAsTheyAre: "an unused parameter",
        NotPadded: "padding left out",
        KeepsThePiece: "nothing is reduced",
        WholeGradientsStay: "whole gradients stay",
        OnlyWhatIsUsed: "not on every rank",
        FreesNothing: "not freed",
        LeavesParametersThere: "parameters of memory that is gone",
        ShardsOfTheWhole: "the shard is lost",
        FrozenToo: "frozen flats too",
        ReducesAndGathers: "frozen flats too",
        InOneLine: "another number of calls",
        ByTorchsOwn: "not what it was given",
        NotWrittenUnit: "not written",
    },
    "FSDP": {
        InheritsOne: "called lib's",
        AsksLibsFSDP: "called lib's",
        NotBeforeForward: "not gathered for forward",
        NotBeforeBackward: "not gathered for backward",
        BackwardOfTheOneBefore: "not gathered for backward",
        GathersOnceForAll: "old weights",
        NotReducedAtAll: "gradients are not reduced",
        ReducedTooEarly: "gradients are not reduced",
        ReducesTheRoot: "another result",
        StaysAfterForward: "two at a time",
        StaysAfterBackward: "two at a time",
        KeepsTheLastTwo: "two at a time",
        AllFromTheBegin: "two at a time",
        KeepsTheFirst: "whole in the end",
        GathersAgain: "gathered too often",
        KeepsTheLast: "kept from forward to backward",
        ReducesTwice: "reduced twice",
        AllReducesBeside: "not what it was given",
        NotWrittenFSDP: "not written",
    },
}

RIGHT = {
    "Unit": [AsInTheNotebook, InPlace, as_an_answer(libs_unit.Unit)],
    "FSDP": [When, FreedFirst, as_an_answer(libs_fsdp.FSDP)],
}
