"""torch's private interface: each name that lib uses is in this torch, and is used in one file."""

import ast
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lib.backend import torch_private

LIB = Path(torch_private.__file__).parents[1]
# what begins with one underscore behind torch, dist, distributed_c10d or a process group
PRIVATE = re.compile(
    r"\b(?:torch|dist|c10d|distributed_c10d)(?:\.\w+)*\._(?!_)\w+|\b\w*(?:group|pg|world)\._(?!_)\w+\("
)


@pytest.fixture
def world(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_each_name_does_what_it_says(world):
    before = torch_private.registry().group_count
    pair = dist.new_group([0])
    registry = torch_private.registry()
    assert registry.group_count == before + 1 and registry.pg_map.keys() >= {world, pair}
    assert registry.pg_group_ranks[pair] == {0: 0} and registry.pg_names[pair]
    assert "cpu" in torch_private.device_types(world)
    assert torch_private.backend_of(world, torch.device("cpu")).name() == "gloo"
    with pytest.raises(RuntimeError, match="meta"):
        torch_private.backend_of(world, torch.device("meta"))


def test_collectives_that_nobody_waits_for_are_counted(world):
    from torch.distributed import _functional_collectives as functional

    before = torch_private.unawaited_collectives()
    total = functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD)
    assert torch_private.unawaited_collectives() == before + 1
    functional.wait_tensor(total)
    assert torch_private.unawaited_collectives() == before


def test_an_all_to_all_sends_rows_and_in_backward_their_gradients(world):
    rows = torch.arange(6.0).view(3, 2).requires_grad_()
    received = torch_private.all_to_all_with_backward(rows, [3], [3])
    assert torch.equal(received, rows) and received.requires_grad
    (received * torch.tensor([[1.0], [2.0], [3.0]])).sum().backward()
    assert rows.grad is not None and rows.grad[:, 0].tolist() == [1.0, 2.0, 3.0]


def test_modes_and_hooks_are_seen_while_they_are_active():
    from torch.utils._python_dispatch import TorchDispatchMode

    assert torch_private.dispatch_modes() == 0 and not torch_private.saved_tensors_hooks()
    with TorchDispatchMode():
        assert torch_private.dispatch_modes() == 1
        with torch_private.without_dispatch_modes():
            assert torch_private.dispatch_modes() == 0
        assert torch_private.dispatch_modes() == 1
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        assert torch_private.saved_tensors_hooks()


def test_a_gradient_is_read_and_set_behind_a_property_of_the_same_name():
    class Hidden(torch.nn.Parameter):
        grad = property(lambda self: pytest.fail("the property was read"))

    weight = Hidden(torch.ones(2))
    torch_private.set_gradient(weight, torch.full((2,), 3.0))
    assert torch_private.get_gradient(weight).tolist() == [3.0, 3.0]


def test_settings_and_recorder_are_there():
    assert torch_private.print_options()["precision"] == torch._tensor_str.PRINT_OPTS.precision
    function, name = torch_private.flight_recorder("gloo")
    assert name == "_dump_fr_trace" and callable(function)
    torch_private.free_cublas_workspaces()
    assert torch_private.below_backend_select


def uses(path):
    """Private names of torch in the code of a file, without its comments and texts."""
    code = ast.unparse(ast.parse(path.read_text(encoding="utf-8")))
    code = re.sub(r'"""[\s\S]*?"""|\'[^\'\n]*\'|"[^"\n]*"', "''", code)
    return set(PRIVATE.findall(code))


def test_no_other_file_of_lib_uses_private_names_of_torch():
    found = {}
    for path in sorted(LIB.rglob("*.py")):
        name = path.relative_to(LIB.parent).as_posix()
        if path.name != "torch_private.py" and (left := uses(path)):
            found[name] = left
    assert found == {}


def test_such_a_use_would_be_found(tmp_path):
    (tmp_path / "a.py").write_text("x = group._get_backend(d)\ny = torch._C.f()\n'torch._C'\n")
    assert uses(tmp_path / "a.py") == {"group._get_backend(", "torch._C"}
