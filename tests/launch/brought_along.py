"""Programs as people bring them along from torchrun, mp.spawn or one process;
test_ways_out.py says what is told."""

import asyncio
import collections
import os
import pdb
import tempfile
import types

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

# What raises on a rank: {what the way out says: programs}


def init_process_group():
    dist.init_process_group("gloo")


def init_nccl():
    dist.init_process_group("nccl", init_method="env://")


def init_as_for_spawn():
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "12355"
    dist.init_process_group("gloo", rank=dist.get_rank(), world_size=dist.get_world_size())


def set_up_in_a_helper():
    def setup(backend="gloo"):
        dist.init_process_group(backend=backend)

    setup()


def init_in_a_class():
    class Trainer:
        def __init__(self):
            dist.init_process_group()

    Trainer()


def set_device():
    torch.cuda.set_device(dist.get_rank())


def to_cuda():
    return torch.ones(1).cuda()


def device_by_name():
    return torch.zeros(2, device=f"cuda:{dist.get_rank()}")


def model_to_cuda():
    return nn.Linear(2, 2).to("cuda")


def model_cuda_of_rank():
    return nn.Linear(2, 2).cuda(int(os.environ["LOCAL_RANK"]))


def device_ids():
    return DDP(nn.Linear(1, 1), device_ids=[dist.get_rank()])


def device_ids_and_output():
    return DDP(nn.Linear(1, 1), device_ids=[0], output_device=0)


def device_ids_of_its_local_rank():
    local_rank = int(os.environ["LOCAL_RANK"])
    return DDP(nn.Linear(1, 1), device_ids=[local_rank], output_device=local_rank)


def device_ids_by_name():
    return DDP(nn.Linear(1, 1), device_ids=[torch.device("cuda", dist.get_rank())])


def device_ids_in_a_helper():
    def wrap(model, gpu):
        return DDP(model, device_ids=[gpu], find_unused_parameters=True)

    return wrap(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), dist.get_rank())


def device_ids_of_a_trainer():
    class Trainer:
        def __init__(self, model, gpu_id):
            self.model = DDP(model, device_ids=[gpu_id])

    return Trainer(nn.Linear(2, 2), 0)


def group_of_nccl():
    return dist.new_group(backend="nccl")


def types_its_breakpoint():
    breakpoint()


def breakpoint_before_more():
    x = torch.ones(2)
    breakpoint()
    return x + 1


def pdb_set_trace():
    pdb.set_trace()
    return 1


def breakpoint_in_a_helper():
    def forward(x):
        breakpoint()
        return x

    return forward(3)


def breakpoint_of_torch():
    dist.breakpoint(dist.get_rank())


def asks():
    return input("how many steps? ")


def reads_a_line():
    return float(input())


def asks_on_the_first_rank_and_tells_the_others():
    answer = [input("learning rate: ") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(answer, src=0)
    return answer


def asks_until_it_is_enough():
    steps = 0
    while input("one more? ") == "y":
        steps += 1
    return steps


def asks_in_a_helper():
    def choose(names):
        return names[int(input(f"which of {names}? "))]

    return choose(["sgd", "adam"])


def destroyed_before():
    dist.destroy_process_group()
    dist.all_reduce(torch.ones(1))


def destroyed_and_asked():
    dist.destroy_process_group()
    return dist.get_rank()


def destroyed_then_a_barrier():
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
    dist.barrier()


def destroyed_then_a_group():
    dist.destroy_process_group()
    return dist.new_group([0])


def destroyed_after_each_epoch():
    def epoch():
        dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()

    for _ in range(2):
        epoch()


def destroyed_then_gathered():
    dist.destroy_process_group()
    results = [None]
    dist.all_gather_object(results, 1.0)


def shell_of_a_module():
    return get_ipython().system("ls")  # noqa: F821


RAISE = {
    "launch.run has initialised torch.distributed on every rank. Leave out init_process_group": [
        init_process_group, init_nccl, init_as_for_spawn, set_up_in_a_helper, init_in_a_class,
    ],
    "write x.to(backend.device()), with `from lib import backend`, "
    'in place of .cuda() and "cuda"': [
        set_device, to_cuda, device_by_name, model_to_cuda, model_cuda_of_rank,
    ],
    "takes device_ids only for a model on a GPU: leave them out": [
        device_ids, device_ids_and_output, device_ids_of_its_local_rank, device_ids_by_name,
        device_ids_in_a_helper, device_ids_of_a_trainer,
    ],
    "leave out the name of the backend": [group_of_nccl],
    "Ask before launch.run, and pass the answer as an argument": [
        asks, reads_a_line, asks_on_the_first_rank_and_tells_the_others, asks_until_it_is_enough,
        asks_in_a_helper,
    ],
    "breakpoint() needs someone at the keyboard. On a rank it works when you run the": [
        types_its_breakpoint, breakpoint_before_more, pdb_set_trace, breakpoint_in_a_helper,
        breakpoint_of_torch,
    ],
    "put them into a cell of their own": [shell_of_a_module],
    "This rank has called dist.destroy_process_group() before": [
        destroyed_before, destroyed_and_asked, destroyed_then_a_barrier, destroyed_then_a_group,
        destroyed_after_each_epoch, destroyed_then_gathered,
    ],
}  # fmt: skip


# What cannot come back


def a_ddp_model():
    return DDP(nn.Linear(2, 2))


def a_ddp_model_in_a_dict():
    return {"loss": 1.0, "model": DDP(nn.Linear(2, 2))}


def a_ddp_model_in_a_tuple():
    return 0.5, DDP(nn.Linear(2, 2))


def a_trainer_with_ddp():
    return types.SimpleNamespace(model=DDP(nn.Linear(2, 2)), steps=3)


def a_model_around_ddp():
    return nn.Sequential(DDP(nn.Linear(2, 2)), nn.ReLU())


def an_fsdp_model():
    from torch.distributed.fsdp import fully_shard

    return fully_shard(nn.Linear(4, 4))


def sharded(*layers):
    from torch.distributed.fsdp import fully_shard

    return fully_shard(
        nn.Sequential(*(fully_shard(layer) for layer in layers or [nn.Linear(4, 4)]))
    )


def an_fsdp_model_in_a_dict():
    return {"epoch": 3, "model": sharded()}


def an_fsdp_model_with_its_optimizer():
    model = sharded(nn.Linear(4, 4), nn.Linear(4, 2))
    return model, torch.optim.AdamW(model.parameters())


def an_fsdp_block_of_a_model():
    return nn.Sequential(nn.Linear(2, 4), *sharded())


def a_trainer_with_fsdp():
    return types.SimpleNamespace(model=sharded(), steps=3)


def a_dtensor():
    return next(sharded().parameters())


def an_fsdp_state_dict():
    return sharded().state_dict()


def gradients_of_fsdp():
    model = sharded()
    model(torch.ones(2, 4)).sum().backward()
    return {name: p.grad for name, p in model.named_parameters()}


def a_layer_of_tensor_parallelism():
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    return parallelize_module(
        nn.Linear(2, 4), dist.init_device_mesh("cpu", (2,)), ColwiseParallel()
    )


def a_distributed_tensor():
    from torch.distributed.tensor import Shard, distribute_tensor

    return [distribute_tensor(torch.ones(4), dist.init_device_mesh("cpu", (2,)), [Shard(0)])]


def a_group():
    return dist.new_group([0, 1])


def a_work():
    return dist.all_reduce(torch.ones(1), async_op=True)


def a_mesh():
    return dist.init_device_mesh("cpu", (2,))


def a_generator():
    return (i for i in range(3))


def a_coroutine():
    return asyncio.sleep(0)


RETURN = {
    "Return model.module.state_dict()": [
        a_ddp_model, a_ddp_model_in_a_dict, a_ddp_model_in_a_tuple, a_trainer_with_ddp,
    ],
    "Return model.state_dict()": [a_model_around_ddp],
    "get_model_state_dict(model, options=": [
        an_fsdp_block_of_a_model, a_layer_of_tensor_parallelism,
    ],
    "p.full_tensor() for name, p in model.state_dict().items()": [
        an_fsdp_model, an_fsdp_model_in_a_dict, an_fsdp_model_with_its_optimizer,
        a_trainer_with_fsdp,
    ],
    "Return x.full_tensor()": [
        a_dtensor, an_fsdp_state_dict, gradients_of_fsdp, a_distributed_tensor,
    ],
    "dist.get_process_group_ranks(group)": [a_group],
    "Call work.wait(), and return the tensor": [a_work],
    "Return mesh.mesh": [a_mesh],
    "Return list(...) of it": [a_generator],
    "asyncio.run(f())": [a_coroutine],
}  # fmt: skip


# What is changed on the ranks, and lost

losses, history, best, queue, found = [], {"loss": []}, {}, collections.deque(), set()
per_epoch, steps, plan, unused = [[], []], 0, [3, 2, 1], []


class Meter:
    def __init__(self):
        self.values = []


meter, weights = Meter(), nn.Linear(2, 1)


def appends():
    for step in range(3):
        losses.append(float(step))


def appends_and_prints():
    for step in range(3):
        losses.append(float(step))
        print(step)


def appends_and_returns_another():
    losses.extend([1.0, 2.0])
    return "done"


def appends_in_a_helper():
    appends()


def enters():
    best["rank"] = dist.get_rank()


def appends_inside_a_dict():
    history["loss"].append(1.0)


def appends_inside_a_list():
    per_epoch[1].append(1.0)


def counts():
    global steps
    steps += 1


def enqueues():
    queue.append(dist.get_rank())


def adds_to_a_set():
    found.add(dist.get_rank())


def appends_to_an_argument(out):
    out.append(dist.get_rank())


def keeps_in_an_object():
    meter.values.append(1)


def trains_the_notebooks_model():
    optimizer = torch.optim.SGD(weights.parameters(), lr=0.1)
    weights(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def a_closure():
    seen = []

    def inside():
        seen.append(dist.get_rank())

    return inside


LOST = {
    "losses": [appends, appends_and_prints, appends_and_returns_another, appends_in_a_helper],
    "best": [enters], "history": [appends_inside_a_dict], "per_epoch": [appends_inside_a_list],
    "steps": [counts], "queue": [enqueues], "found": [adds_to_a_set], "meter": [keeps_in_an_object],
    "weights": [trains_the_notebooks_model], "seen": [a_closure()],
}  # fmt: skip


# Nothing is lost here


def returns_its_list():
    losses.append(1.0)
    return losses


def returns_a_copy():
    losses.append(1.0)
    return list(losses)


def returns_a_mean():
    losses.append(1.0)
    return sum(losses) / len(losses)


def returns_it_in_a_dict():
    history["loss"].append(1.0)
    return {"history": history}


def prints_what_it_counted():
    best["rank"] = dist.get_rank()
    print(best)


def works_through_a_plan():
    done = 0
    while plan:
        done += plan.pop()
    return done


def reads_alone():
    return len(losses) + len(best) + steps + len(unused)


def only_sends():
    dist.all_reduce(x)


def remembers(n):
    if n not in best:
        best[n] = n * n
    return best[n]


def uses_a_memo():
    return sum(remembers(n) for n in range(3))


x = torch.ones(2)
KEPT = [
    returns_its_list, returns_a_copy, returns_a_mean, returns_it_in_a_dict, prints_what_it_counted,
    works_through_a_plan, reads_alone, only_sends, uses_a_memo,
]  # fmt: skip


# What is made for mp.spawn


def main(rank, world_size):
    return rank, world_size


def main_with_more(rank, world_size, epochs, lr):
    return rank, world_size, epochs, lr


def worker(gpu, args):
    return gpu, args


def demo_basic(rank):
    return rank


def run(rank, size):
    return rank, size


def train(local_rank, ngpus_per_node, args):
    return local_rank, ngpus_per_node, args


SPAWNED = [  # the call, and what it should have been
    (main, (2,), "launch.run(main, nproc=4)"),
    (main, (), "launch.run(main, nproc=4)"),
    (main_with_more, (2, 10, 0.1), "launch.run(main_with_more, epochs, lr, nproc=4)"),
    (worker, ({"lr": 0.1},), "launch.run(worker, args, nproc=4)"),
    (demo_basic, (), "launch.run(demo_basic, nproc=4)"),
    (run, (4,), "launch.run(run, nproc=4)"),
    (train, (2, None), "launch.run(train, args, nproc=4)"),
]


# A shell line, as IPython writes it


def lists_files():
    get_ipython().system("ls")  # noqa: F821
    return 1


def times_it():
    return get_ipython().run_line_magic("timeit", "-n1 1 + 1")  # noqa: F821


def gets_output():
    return get_ipython().getoutput("nproc")  # noqa: F821


def lists_in_a_helper():
    return lists_files()


def changes_folder():
    with tempfile.TemporaryDirectory() as folder:
        get_ipython().run_line_magic("cd", folder)  # noqa: F821


def inside_a_loop():
    return [(lambda: get_ipython().system(f"echo {i}"))() for i in range(2)]  # noqa: F821


SHELL = [lists_files, times_it, gets_output, lists_in_a_helper, changes_folder, inside_a_loop]
