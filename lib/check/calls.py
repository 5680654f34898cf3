"""How an answer is called on ranks, case by case, and what is noted of each call: the records that
claims look at.

    Calls(cases, give, want)(fn)   give(case, rank) -> {argument: value}  want(case, rank) -> tensor

A record of one rank: ok; got, what counts, on the CPU (no tensor: its form in words); filled;
returned, "it" where the very tensor came back that was to hold the result, else as got; changed and
shared, the arguments that were changed, or whose memory the result has; kept, whether it is still
what it was after all later calls; watched, what `watch` saw.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist

from lib import backend
from lib.check.cases import Case, called, form_of, groups_of, in_step, is_a, of_world


@dataclass(frozen=True)
class Calls:
    """A measure: an answer, a function of tensors and one group or several, called in each case on
    the case's ranks.

    give: arguments in order, made on the CPU; those that an answer may name (`by_name`) go by name,
        and None is left out. into: the argument that holds the result after the call; "": what is
        returned.
    fills: an argument that, where it is given, holds what is returned.
    cases: a tuple, or a function of the number of ranks.
    watch: `with watch() as watched:` around each call; what it saw is in the record.
    groups: (cases) -> {case: its group, given by name unless None; or a tuple of groups, given in
        order}.
    """

    cases: tuple[Case, ...] | Callable
    give: Callable
    want: Callable
    into: str = ""
    fills: str = ""
    by_name: tuple[str, ...] = ()
    groups: Callable = groups_of
    watch: Callable = nullcontext

    def __call__(self, fn):
        held = []

        def one(case, group):
            rank = case.members.index(dist.get_rank())
            given = {
                name: _there(value)
                for name, value in self.give(case, rank).items()
                if value is not None
            }
            before = {
                name: value.clone() for name, value in given.items() if torch.is_tensor(value)
            }
            with self.watch() as watched:
                returned = self._call(fn, case, group, given)
            record, out = self._record(case, rank, given, before, returned)
            record["watched"] = watched
            held.append((record, out, before))
            return record

        records = in_step(of_world(self.cases, dist.get_world_size()), self.groups, one)
        for record, out, _ in held:
            record["kept"] = (
                not torch.is_tensor(out)
                or not record["ok"]
                or torch.equal(out.cpu(), record["got"])
            )
        return records

    def _call(self, fn, case, group, given):
        named = {name: value for name, value in given.items() if name in self.by_name}
        plain = [value for name, value in given.items() if name not in named]
        if isinstance(group, tuple):
            plain += group
        elif group is not None:
            named["group"] = group
        return called(case, fn, *plain, **named)

    def _record(self, case, rank, given, before, returned):
        out, place = (
            (given[self.into] if self.into else returned),
            given.get(self.into or self.fills),
        )
        got, want = _plain(out), self.want(case, rank)
        inputs = {
            name: tensor for name, tensor in given.items() if name in before and tensor is not place
        }
        filled = not self.fills or place is None or is_a(place.cpu(), want)
        return {
            "ok": is_a(got, want) and filled,
            "got": got,
            "filled": filled,
            "returned": "it" if returned is place and torch.is_tensor(place) else _plain(returned),
            "changed": [
                name for name, tensor in inputs.items() if not torch.equal(tensor, before[name])
            ],
            "shared": [name for name, tensor in inputs.items() if shares_memory(out, tensor)],
            "kept": True,
        }, out


def shares_memory(a, b) -> bool:
    """Have both tensors the same storage, with something in it?"""
    if not (torch.is_tensor(a) and torch.is_tensor(b)):
        return False
    return (
        a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
        and a.numel() * b.numel() > 0
    )


def _there(value):
    if isinstance(value, list):
        return [_there(one) for one in value]
    return value.to(backend.device(), copy=True) if torch.is_tensor(value) else value


def _plain(returned):
    return returned.detach().cpu().clone() if type(returned) is torch.Tensor else form_of(returned)
