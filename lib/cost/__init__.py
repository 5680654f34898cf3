"""What training costs, in bytes, operations and seconds. Nothing here runs on ranks, and the
planner does not need torch.

    python -m lib.cost plan --model ... --gpu ... --gpus ... --batch ...

Formulas
    state.py          bytes of weights, gradients and optimizer state
    activations.py    bytes that a layer's activations take
    compute.py        operations per token, and days of training
    data_parallel.py  seconds of a step of data parallelism, and how it scales
    exposed.py        seconds of communication that are not hidden by computation
    zero.py           what a rank stores and sends at each stage of ZeRO
    clinic.py         jobs that run out of memory, and the cheapest remedy
    goodput.py        what failures, checkpoints and restarts cost a job; how often to save
    strategies.py     six ways to distribute training: which of them fit in memory, and how long
                      a GPU waits in each step

The model: what a plan costs
    hardware.py shapes.py plan.py stacks.py  GPUs and links, models, plans, software
    matmul.py network.py                     seconds of a matmul and of a collective
    layer.py sharding.py step.py             seconds of a layer, of exchanging gradients, and of a
                                             step
    parts.py kept.py memory.py               which ranks have which parameters; bytes that a layer
                                             keeps, and bytes on the fullest GPU
    by_hand.py                               memory, bubble and messages of a plan, by formulas that
                                             fit on a page
    volume.py                                elements that a step on a mesh sends along each axis
    bubbles.py                               bubble rates of pipeline schedules
    measured.py                              a step on this machine, predicted from measurements
    placement.py                             one plan, with its mesh axes mapped to nodes in any
                                             order

Published facts
    published.py                             the tables in data/
    parameters.py ranges.py                  what is fitted to published runs (lib.calibration), and
                                             how accurate a prediction is
    tp_sweep.py                              published steps for several tp, and the seconds of
                                             their all-reduces

Planning
    choose.py                                the fastest plan that fits, in one loop
    search.py explain.py remedies.py         every plan that fits, ranked;
                                             why the best wins; what would fit
"""

from lib.cost.compute import training_days
from lib.cost.state import RECIPES, ModelState, model_state_bytes

__all__ = ["RECIPES", "ModelState", "model_state_bytes", "training_days"]
