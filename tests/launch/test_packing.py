"""What travels between the notebook and the ranks arrives as it was."""

import cloudpickle
import pytest
import torch

from lib import launch
from lib.launch import packing

MATRIX = torch.arange(6.0).reshape(2, 3)  # (2, 3)
DTYPES = [
    torch.float64,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
]
TENSORS = {
    "a matrix": MATRIX,
    "a number": torch.tensor(2.5),
    "no elements": torch.zeros(2, 0, 3),
    "a column": MATRIX[:, 1],
    "transposed": MATRIX.T,
    "expanded": MATRIX.expand(4, 2, 3),
    "conjugated": torch.complex(MATRIX, MATRIX).conj(),
    "sparse": MATRIX.to_sparse(),
    "to be trained": MATRIX.clone().requires_grad_(),
    "a parameter": torch.nn.Parameter(MATRIX),
} | {str(dtype): MATRIX.to(dtype) for dtype in DTYPES}


def there_and_back(thing):
    return cloudpickle.loads(packing.dumps(thing))


def check(got, sent):
    form = lambda tensor: (
        type(tensor),
        tensor.dtype,
        tensor.shape,
        tensor.layout,
        tensor.requires_grad,
    )
    # torch compares no 8-bit floats
    numbers = lambda tensor: tensor.detach().to_dense().to(torch.complex64)
    assert form(got) == form(sent) and torch.equal(numbers(got), numbers(sent))


@pytest.mark.parametrize("what", TENSORS)
def test_a_tensor_arrives_with_its_numbers_dtype_and_shape(what):
    check(there_and_back(TENSORS[what]), TENSORS[what])


def test_so_they_do_from_a_rank():
    (got,) = launch.capture(lambda: TENSORS, nproc=1)
    for what, sent in TENSORS.items():
        check(got[what], sent)


def test_what_is_one_stays_one_and_can_be_written_to():
    model = there_and_back([linear := torch.nn.Linear(2, 2), linear.weight, [MATRIX, MATRIX]])
    assert model[0].weight is model[1] and model[2][0] is model[2][1]
    model[2][0][0, 0] = 7.0
    assert MATRIX[0, 0] == 0


def test_attributes_of_a_tensor_arrive():
    sent = torch.ones(2)
    sent.owner = "rank 0"
    assert there_and_back(sent).owner == "rank 0"


def test_a_piece_is_sent_without_the_tensor_that_it_is_of():
    assert len(packing.dumps(torch.zeros(1_000_000)[:10])) < 1000


OPS = {
    "torch.ops": torch.ops,
    "a namespace": torch.ops.aten,
    "an operation": torch.ops.aten.mm,
    "one of its overloads": torch.ops.aten.mm.default,
}


@pytest.mark.parametrize("what", OPS)
def test_a_function_may_use_operations_of_torch_by_any_name(what):
    ops = OPS[what]
    assert there_and_back(lambda: ops)() is ops
