"""A student's stash between PipeDream and the check: what it is asked, what it gives, and what it holds meanwhile.

    PipeDream  --for_forward(j)-->  Watched  -->  the student's stash
               <----weights-------           <--

`Watched` keeps a copy of every version: which one the stash gives is found by comparing numbers, bit for bit. What the
stash holds is found by going through the object: all memory of all tensors in it.
"""

import gc
import types

import torch

from lib.check.framework import Problem
from lib.check.lab0.cases import form_of


class Watched:
    """A student's stash, as PipeDream sees it. problem: the first thing that is wrong with what it gives."""

    def __init__(self, where, stash_class, weights):
        self.where, self.forms = where, {name: form_of(w) for name, w in weights.items()}
        self.versions = [copied(weights)]
        self.one = sum(memory(weights.values()).values())  # bytes of a version
        self.stash = stash_class(weights)
        self.under_way = {}  # mini-batch: (version that it ran forward with, the memory that it was given)
        self.done, self.held, self.places, self.problem = [], [], [], None

    def for_forward(self, j):
        weights = self._given(self.stash.for_forward(j), f"for_forward({j})")
        newest, got = len(self.versions) - 1, self._version(weights)
        self.done.append(f"F{j}")
        if got != newest:
            text = f"for_forward({j}) gave {_name(got)}, expected the newest, version {newest}"
            self._note("forward", text, got=got, expected=newest)
        self.under_way[j] = newest, memory(weights.values())
        self._count()
        self.places.append(set(self.under_way[j][1]))
        return weights

    def for_backward(self, j):
        weights = self._given(self.stash.for_backward(j), f"for_backward({j})")
        (expected, place), got = self.under_way.pop(j), self._version(weights)
        self.done.append(f"B{j}")
        if got != expected:
            text = f"for_backward({j}) gave {_name(got)}, expected version {expected}: mini-batch {j} ran forward "
            text += "with that"
            newest, same = len(self.versions) - 1, memory(weights.values()).keys() == place.keys()
            self._note("backward", text, got=got, expected=expected, newest=newest, same=same)
        return weights

    def update(self, change):
        newest, calls = len(self.versions) - 1, []

        def noting(weights):
            calls.append(self._version(self._given(weights, "change")))
            self._count(weights.values())
            change(weights)
            changed.append(copied(weights))

        changed = []
        self.stash.update(noting)
        if len(calls) != 1:
            self._note("calls", f"update called change {len(calls)} times, expected once", calls=len(calls))
        elif calls[0] != newest:
            text = f"update changed {_name(calls[0])}, expected the newest, version {newest}"
            self._note("base", text, got=calls[0], expected=newest)
        self.versions.append(changed[-1] if changed else self.versions[-1])
        self.done.append(f"u{newest}")
        self._count()

    def _given(self, weights, what):
        forms = {name: form_of(w) for name, w in weights.items()} if isinstance(weights, dict) else None
        if forms != self.forms:
            got = form_of(weights) if forms is None else f"{{{', '.join(f'{n}: {f}' for n, f in forms.items())}}}"
            wanted = ", ".join(f"{n}: {f}" for n, f in self.forms.items())
            if what == "change":
                raise TypeError(f"change was called with {got}, expected {{{wanted}}}")
            raise TypeError(f"{what} returned {got}, expected {{{wanted}}}")
        return weights

    def _version(self, weights):
        """The number of the version that has these values, the newest such; None if none has."""
        same = lambda version: all(torch.equal(version[name], w) for name, w in weights.items())
        return next((k for k in reversed(range(len(self.versions))) if same(self.versions[k])), None)

    def _note(self, kind, text, **facts):
        text = f"{self.where}: {text}\nSo far: {' '.join(self.done[-12:])}   (version k: after k updates)"
        self.problem = self.problem or Problem(kind, text, facts)

    def _count(self, also=()):
        """How many versions there are: in the stash, and what mini-batches under way were given."""
        held = memory([*tensors_in(self.stash), *also])
        for _, place in self.under_way.values():
            held |= place
        self.held.append((sum(held.values()) / self.one, " ".join(self.done[-12:])))


def memory(tensors):
    """{address: bytes} of the tensors' storages, each once."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


def tensors_in(thing):
    """Every tensor that can be reached from an object through its attributes, lists, dictionaries, ..."""
    found, seen, rest = [], set(), [thing]
    while rest:
        item = rest.pop()
        if id(item) in seen or isinstance(item, type | types.ModuleType | types.FunctionType | types.MethodType):
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            found.append(item)
        else:
            rest += gc.get_referents(item)
    return found


def copied(weights):
    return {name: w.detach().clone() for name, w in weights.items()}


def _name(version):
    return "weights that never were a version" if version is None else f"version {version}"
