"""Figures from plain data, all in one style. Nothing here needs torch or ranks.

    plots.traffic_matrix(results.ledger.matrix("bytes"))         the last line of a cell: the notebook shows it
    plots.timeline(entries).show()                               anywhere else in a cell
    plots.loss_curve(steps, losses, entropy).save("loss.png")    a script

Colours: one per rank, the same in every lab (`rank_color`); one per kind of work (`OP_COLOR`). They stay apart
for readers who see no red, no green or no blue. Predictions are dashed, measurements solid. The title says what the
figure shows, the caption what to look at, the alt text both to a reader who cannot see it. The background is a solid
light paper, so that the figure reads the same on a light and on a dark page.
The same data give the same bytes: a notebook executed again stores the same image.

    style.py      colours, letters, Drawing, the frame          memory.py    walls: what fills the memory
    labels.py     numbers in words, labels that keep apart      product.py   four_ways to split a matrix product
    traffic.py    traffic_matrix: who sent how much to whom     chunks.py    ring: chunks summed and passed on
    lanes.py      timeline: what each rank did and when         curves.py    cost_curves: time against size
    messages.py   message_rounds: who sends when                links.py     topology: how fast links really are
    circle.py     ranks on a circle, arrows                     loss.py      loss_curve, loss_curves
    waits.py      waits_for: a deadlock's cycle
    steps.py      step_timeline: compute and communication      scaling.py   scaling, communication_share
    server.py     server_traffic: a server against a ring       precision.py underflow, gradient_range: fp16
    gantt.py      gantt, gantts: schedules on the clock         boxes.py     what gantt.py and overlay.py share
    overlay.py    simulated_and_measured, on one axis           bubbles.py   bubble_curve: idle time against m
    kept.py       kept_over_time: live micro-batches            loads.py     stage_loads: layers cut into stages
    versions.py   stage_versions: PipeDream's weights           recompute.py recompute: memory against time
    told.py       told: words in a figure's place
    sharded.py    sharded_linears: columns, gelu, rows          ring_work.py ring_attention_work: who computes what
    tp_volume.py  tp_volume: a layer's time against tp          activation_memory.py: what a rank keeps for backward
    predictions.py predicted_against_measured: published runs

    stages.py        who_holds_what: ZeRO, stage by stage       stage_volume.py  volume_by_stage: what a stage sends
    stage_memory.py  state_by_stage, state_measured             units.py         units_whole: unshard to reshard
    live.py          memory_over_a_step, by stage               prefetch.py      prefetch_timeline: compute and wire
    expert_load.py   expert_load: shares of the tokens          routing.py       routing: tokens to experts' slots
    capacity.py      capacity_trade: dropped or empty           exchange.py      exchange_matrix: rows to experts
    sparse.py        sparse_layer: parameters against compute

    mesh.py          mesh: ranks, axes, groups, nodes           big_mesh.py      big_mesh: 3,072 GPUs, a box per node
    step_times.py    step_times: predicted beside measured      axis_volume.py   axis_volume: bytes along each axis
    plan_ranking.py  plan_ranking: the best plans               plan_cost.py     plan_cost: a plan beside the best
    components.py    parts of a step and of memory, as bars     shardings.py     shardings: a block's operators, split
    stage_cut.py     stage_cut: layers to stages to devices     unequal.py       unequal_steps: who waits for whom
"""

from lib.plots.activation_memory import activation_memory
from lib.plots.axis_volume import axis_volume
from lib.plots.big_mesh import big_mesh
from lib.plots.bubbles import bubble_curve
from lib.plots.capacity import capacity_trade
from lib.plots.chunks import ring
from lib.plots.curves import cost_curves
from lib.plots.exchange import exchange_matrix
from lib.plots.expert_load import expert_load
from lib.plots.gantt import gantt, gantts
from lib.plots.kept import kept_over_time
from lib.plots.labels import scale, short, spread
from lib.plots.lanes import timeline
from lib.plots.links import topology
from lib.plots.live import memory_over_a_step
from lib.plots.loads import stage_loads
from lib.plots.loss import loss_curve, loss_curves
from lib.plots.memory import memory_parts, walls
from lib.plots.mesh import mesh
from lib.plots.messages import matched, message_rounds, rounds
from lib.plots.overlay import simulated_and_measured
from lib.plots.plan_cost import plan_cost
from lib.plots.plan_ranking import plan_ranking
from lib.plots.precision import gradient_range, underflow
from lib.plots.predictions import predicted_against_measured
from lib.plots.prefetch import prefetch_timeline
from lib.plots.product import four_ways
from lib.plots.recompute import recompute
from lib.plots.ring_work import ring_attention_work
from lib.plots.routing import routing
from lib.plots.scaling import communication_share, scaling
from lib.plots.server import server_traffic
from lib.plots.sharded import sharded_linears
from lib.plots.shardings import shardings
from lib.plots.sparse import sparse_layer
from lib.plots.stage_cut import stage_cut
from lib.plots.stage_memory import state_by_stage, state_measured
from lib.plots.stage_volume import volume_by_stage
from lib.plots.stages import who_holds_what
from lib.plots.step_times import step_times
from lib.plots.steps import hidden_share, step_timeline
from lib.plots.style import (
    ALARM,
    FAINT,
    INK,
    OP_COLOR,
    PAPER,
    RANK_COLORS,
    Drawing,
    finish,
    on_color,
    rank_color,
    styled,
)
from lib.plots.told import told
from lib.plots.tp_volume import tp_volume
from lib.plots.traffic import traffic_claim, traffic_matrix
from lib.plots.unequal import unequal_steps
from lib.plots.units import units_whole
from lib.plots.versions import stage_versions
from lib.plots.waits import find_cycle, waits_for

__all__ = [
    "ALARM", "FAINT", "INK", "OP_COLOR", "PAPER", "RANK_COLORS", "Drawing", "activation_memory", "axis_volume",
    "big_mesh", "bubble_curve", "capacity_trade", "communication_share", "cost_curves", "exchange_matrix",
    "expert_load", "find_cycle", "finish", "four_ways", "gantt", "gantts", "gradient_range", "hidden_share",
    "kept_over_time", "loss_curve", "loss_curves", "matched", "memory_over_a_step", "memory_parts", "mesh",
    "message_rounds", "on_color", "plan_cost", "plan_ranking", "predicted_against_measured", "prefetch_timeline",
    "rank_color", "recompute", "ring", "ring_attention_work", "rounds", "routing", "scale", "scaling", "server_traffic",
    "sharded_linears", "shardings", "short", "simulated_and_measured", "sparse_layer", "spread", "stage_cut",
    "stage_loads", "stage_versions", "state_by_stage", "state_measured", "step_timeline", "step_times", "styled",
    "timeline", "told", "topology", "tp_volume", "traffic_claim", "traffic_matrix", "underflow", "unequal_steps",
    "units_whole", "volume_by_stage", "waits_for", "walls", "who_holds_what",
]  # fmt: skip
