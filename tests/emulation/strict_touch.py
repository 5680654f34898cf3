"""Who touches a tensor that is under way, and whether it may.

    what is under way       read it                               write it
    being sent,    no wait  allowed                               "written while its send is
                                                                   under way"
    being filled,  no wait  "read before wait"                    "written before wait"
    either, after wait()    the stream's item is executed first, then the op runs: the host waits
                            only here

A dispatch mode sees every op, those of backward too, and a few methods of Tensor which read without
an op (`numpy`, `tolist`, pickling) are wrapped. Until somebody has waited a tensor that is being
filled also *holds* NaN (an integer: a value that nobody computes), for those who read past the
mode. Tensors are compared by the bytes that they cover.
"""

import functools
import threading

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.emulation import strict_stream

# Namespaces: what posts an op comes by again as c10d's kernel, which looks itself.
PASSED = {"c10d", "_c10d_functional", "_c10d_functional_autograd", "strict", "profiler"}
WORDS = (
    "empty_like",
    "new_empty",
    "zeros_like",
    "ones_like",
    "full_like",
    "rand",
    "new_zeros",
    "new_ones",
    "new_full",
)
READ_NOTHING = {
    "aten::_unsafe_view",
    "aten::_reshape_alias",
    "aten::is_same_size",
    "aten::set_",
    "aten::is_pinned",
}
MADE_OF_OTHERS = {"DTensor", "AsyncCollectiveTensor"}
READERS = ("numpy", "tolist", "__array__", "__reduce_ex__", "__deepcopy__", "__dlpack__")


class BrokenRule(RuntimeError):
    """What NCCL would not have forgiven: the rule first, then op, tensor and line."""


class Region:
    """The bytes of one tensor that an item reads or fills."""

    def __init__(self, item, post, tensor, filled):
        self.item, self.post, self.filled = item, post, filled
        self.tensor = tensor.data  # keeps the storage; a version counter of its own
        self.start, self.end = extent(tensor)

    def what(self):
        return f"{form(self.tensor)}, which {self.post.says()}"


class Table:
    """All items under way on this rank, and their regions by storage."""

    def __init__(self):
        self.lock, self.regions = threading.RLock(), {}
        self.items = {}  # number -> item, until it is settled
        # here.settling: this thread is putting results where they belong
        self.here = threading.local()

    def add(self, item, post):
        """`post` is now part of `item`, and under way."""
        with self.lock:
            for tensor, filled in [(t, False) for t in post.reads] + [
                (t, True) for t in post.fills
            ]:
                self.regions.setdefault(storage_of(tensor), []).append(
                    Region(item, post, tensor, filled)
                )

    def touch(self, tensor, writes, who):
        """Called before `who` reads or writes `tensor`: raises, or executes what it depends on."""
        for region in self._overlapping(tensor):
            if not region.filled and not writes:
                continue
            communicates = getattr(region.item, "communicates", None)
            if communicates is not None and communicates.ident == threading.get_ident():
                continue  # lib's communication thread, in what it was started for
            if not region.item.was_waited_for():
                raise BrokenRule(_broken(region, writes, who))
            self.settle(region.item)

    def _overlapping(self, tensor):
        found = self.regions.get(storage_of(tensor))
        if not found:
            return []
        start, end = extent(tensor)
        with self.lock:
            found = [r for r in found if r.start < end and start < r.end]
        return [r for r in found if tensor.is_contiguous() or _share_bytes(tensor, r)]

    def settle(self, item):
        """Wait until `item` has been executed, and put its results where they belong."""
        strict_stream.on_the_host(item.done)
        with self.lock:
            if item.settled:
                return
            item.settled = self.here.settling = True
            try:
                for tensor, landing in [
                    pair for post in item.posts for pair in ([] if item.error else post.landings)
                ]:
                    # else it was freed meanwhile
                    if extent(tensor)[1] <= tensor.untyped_storage().nbytes():
                        tensor.data.copy_(landing)
            finally:
                self.here.settling = False
            # Only now: whoever finds no region reads at once, without the lock.
            for key in {
                storage_of(tensor) for post in item.posts for tensor in post.reads + post.fills
            }:
                left = [r for r in self.regions.get(key, []) if r.item is not item]
                if left:
                    self.regions[key] = left
                else:
                    self.regions.pop(key, None)
            self.items.pop(item.number, None)
            for post in list(item.posts):
                post.forget()
        if item.error:
            raise RuntimeError(item.error)


class Sentry(TorchDispatchMode):
    """Shows each op's tensors to the table."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(t.__name__ in MADE_OF_OTHERS for t in types):
            return NotImplemented  # their parts come by later
        kwargs = kwargs or {}
        if self.table.regions and not getattr(self.table.here, "settling", False):
            writes = written(func)
            if writes is not None:
                for name, value in [*enumerate(args), *kwargs.items()]:
                    for tensor in tensors_in(value):
                        self.table.touch(tensor, name in writes, func._schema.name)
        return func(*args, **kwargs)


@functools.cache
def written(func):
    """Places and names of the arguments that `func` writes; None if it neither reads nor
    writes, as a view does."""
    schema = func._schema
    name = schema.name
    if func.namespace in PASSED or name in READ_NOTHING:
        return None
    if any(name.split("::")[1].startswith(word) for word in WORDS):
        return None
    alias = [a.alias_info for a in schema.arguments]
    writes = {i for i, info in enumerate(alias) if info is not None and info.is_write}
    returned = [r.alias_info for r in schema.returns]
    if not writes and returned and all(info is not None for info in returned):
        return None  # a view
    return frozenset(writes | {schema.arguments[i].name for i in writes})


def watch_readers(table):
    """Wrap the methods of Tensor that read its memory without an op."""
    for name in READERS:
        setattr(torch.Tensor, name, _first_touch(table, name, getattr(torch.Tensor, name)))
    resize = torch.UntypedStorage.resize_

    def first_touch_all(storage, size):
        if table.regions.get(storage._cdata):
            table.touch(
                torch.empty(0, dtype=torch.uint8).set_(storage), True, "resize_ of its storage"
            )
        return resize(storage, size)

    torch.UntypedStorage.resize_ = first_touch_all


def _first_touch(table, name, plain):
    @functools.wraps(plain)
    def reader(self, *args, **kwargs):
        if table.regions:
            table.touch(self, False, name)
        return plain(self, *args, **kwargs)

    return reader


def poison(tensor):
    """Fill `tensor` with what nobody computes."""
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.data.fill_(float("nan"))
    else:
        tensor.data.fill_(
            True if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).max - 12
        )


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)


def storage_of(tensor):
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):  # it has none of its own: sparse, or on no device
        return None


def extent(tensor):
    """The bytes of its storage from the first to the last that `tensor` covers."""
    if tensor.numel() == 0:
        return 0, 0
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    size, first = tensor.element_size(), tensor.storage_offset()
    return first * size, (first + last + 1) * size


def _share_bytes(tensor, region):
    """Exactly: a strided tensor may pass a region by."""
    size = tensor.element_size()
    start, end = extent(tensor)
    if start % size or region.start % size or region.end % size:
        return True
    covered = torch.zeros((end - start) // size, dtype=torch.bool)
    covered.as_strided(tensor.shape, tensor.stride(), 0).fill_(True)
    first = (max(region.start, start) - start) // size
    return bool(covered[first : (region.end - start) // size].any())


def form(tensor):
    return f"{str(tensor.dtype)[6:]} {tuple(tensor.shape)}"


def _broken(region, writes, who):
    if not region.filled:
        return (
            f"written while its send is under way: {who} writes {region.what()}; no wait() has "
            f"been called for it"
        )
    if writes and who in ("recv", "recv of a batch"):
        return (
            f"two receives into one buffer: {who} fills {region.what()}; no wait() has been called "
            f"for it"
        )
    rule, verb = ("written before wait", "writes") if writes else ("read before wait", "reads")
    return f"{rule}: {who} {verb} {region.what()}; no wait() has been called for it"
