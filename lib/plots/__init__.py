"""The figures of the course: functions that turn plain data into images, all in one style.

    plots.traffic_matrix(results.ledger.matrix("bytes"))       # last line of a cell: it is shown
    plots.timeline(entries).show()                             # anywhere else in a cell
    plots.loss_curve(steps, losses, entropy).save("loss.png")  # in a script

A figure is a function from plain data, such as ledger entries or a simulation, to a `Drawing`,
which is a PNG with alt text. Importing this package therefore needs neither torch nor ranks. The
title of a figure states what it shows, the caption says what to look at, and the alt text gives the
title and the numbers to readers who cannot see the image. Predictions are dashed and measurements
solid. Each rank has the same colour in every lab (`rank_color`), as does each kind of work
(`OP_COLOR`). The colours can be told apart by readers who are colour-blind (protanopia,
deuteranopia or tritanopia). The background is a solid, light colour, so that a figure looks the
same on a light and on a dark page. The same data give the same bytes, so a notebook that is
executed again stores the same image.

    style.py      colours, fonts, Drawing, the frame
    labels.py     numbers and lists in words, labels that do not overlap
    draw.py       the page, rows, boxes and bars, curves and the names at their ends
    boxes.py      a schedule's boxes on lanes of time

Every other module draws one figure or a few related ones, which its docstring describes. To add a
figure, write a function in a module of its own, draw with the helpers of these four modules, and
decorate the function with `drawing`, which adds the frame. Then import it here and add its name to
`__all__`.
"""

from lib.plots.activation_memory import activation_memory, recompute
from lib.plots.attention_volume import attention_volume
from lib.plots.axis_volume import axis_volume
from lib.plots.before_after import before_after
from lib.plots.big_mesh import big_mesh
from lib.plots.bubbles import bubble_curve
from lib.plots.capacity import capacity_trade
from lib.plots.chunks import ring
from lib.plots.components import plan_cost, plan_ranking
from lib.plots.curves import cost_curves, links, tp_volume
from lib.plots.evidence import evidence
from lib.plots.expert_load import expert_load
from lib.plots.expert_slots import expert_slots
from lib.plots.gantt import gantt, gantts, simulated_and_measured
from lib.plots.kept import kept_over_time
from lib.plots.labels import scale, short, spread
from lib.plots.lanes import timeline
from lib.plots.live import memory_over_a_step
from lib.plots.loss import loss_curve, loss_curves
from lib.plots.lost_share import lost_share
from lib.plots.memory import memory_parts, walls
from lib.plots.mesh import mesh
from lib.plots.messages import find_cycle, matched, message_rounds, rounds, waits_for
from lib.plots.muon import owner_loads, singular_values
from lib.plots.precision import gradient_range, underflow
from lib.plots.prefetch import prefetch_timeline
from lib.plots.product import four_ways, sharded_linears
from lib.plots.published import (
    nccl_all_reduce,
    predicted_against_measured,
    prediction_errors,
    topology,
)
from lib.plots.rank_shares import rank_shares
from lib.plots.replay import replay
from lib.plots.ring_work import ring_attention_work
from lib.plots.routing import routing
from lib.plots.sabotage import against_baselines
from lib.plots.scaling import communication_share, scaling
from lib.plots.seeds import seed_differences, seed_losses
from lib.plots.shardings import shardings
from lib.plots.sparse import sparse_layer
from lib.plots.stage_cut import stage_cut, stage_loads
from lib.plots.stage_memory import state_by_stage, state_measured, who_holds_what
from lib.plots.stage_volume import volume_by_stage
from lib.plots.step_memory import memory_by_remedy
from lib.plots.step_times import step_times
from lib.plots.steps import hidden_share, step_timeline
from lib.plots.streams import streams
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
    readable,
    styled,
    told,
)
from lib.plots.tp_rise import tp_rise
from lib.plots.traffic import exchange_matrix, server_traffic, traffic_claim, traffic_matrix
from lib.plots.unequal import unequal_steps
from lib.plots.units import units_unsharded
from lib.plots.versions import stage_versions

__all__ = [
    "ALARM", "FAINT", "INK", "OP_COLOR", "PAPER", "RANK_COLORS", "Drawing", "activation_memory",
    "against_baselines",
    "attention_volume", "axis_volume", "before_after", "big_mesh", "bubble_curve", "capacity_trade",
    "communication_share", "cost_curves", "evidence", "exchange_matrix", "expert_load",
    "expert_slots", "find_cycle", "finish", "four_ways", "gantt", "gantts", "gradient_range",
    "hidden_share", "kept_over_time", "links", "loss_curve", "loss_curves", "lost_share", "matched",
    "memory_by_remedy", "memory_over_a_step", "memory_parts", "mesh", "message_rounds",
    "nccl_all_reduce", "on_color", "owner_loads", "plan_cost", "plan_ranking",
    "predicted_against_measured", "prediction_errors", "prefetch_timeline", "rank_color",
    "rank_shares", "readable", "recompute", "replay",
    "ring", "ring_attention_work", "rounds", "routing",
    "scale", "scaling",
    "seed_differences", "seed_losses", "server_traffic", "sharded_linears", "shardings", "short",
    "simulated_and_measured", "singular_values", "sparse_layer", "spread", "stage_cut",
    "stage_loads", "stage_versions", "state_by_stage", "state_measured", "step_timeline",
    "step_times", "streams", "styled", "timeline", "told", "topology", "tp_rise", "tp_volume",
    "traffic_claim", "traffic_matrix", "underflow", "unequal_steps", "units_unsharded",
    "volume_by_stage", "waits_for", "walls", "who_holds_what",
]  # fmt: skip
