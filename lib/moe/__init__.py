"""Mixture of experts: many MLPs in place of one, of which each token uses k (Shazeer et al. 2017).

    x --router--> logits --gate--> choice --capacity--> routing  who goes where, of a rank's tokens
    x --dispatch--> rows --exchange--> experts --exchange--> rows --combine--> y  there and back

file                what it is                                     sent
------------------  ---------------------------------------------  ---------------------------------
choice.py           what each token asks for                       nothing
gates.py            top-1 (Switch), top-k, top-2 sampled (GShard)  nothing
expert_choice.py    experts choose tokens                          nothing
correlated.py       experts that are chosen together               nothing
capacity.py         C slots per expert: keep, drop, or send on     nothing
balance.py          auxiliary loss, z-loss, a bias without a loss  nothing
dispatch.py         tokens to slots and back: einsum, sorting      nothing
layer.py            all of it, in one process                      nothing
exchange.py         uneven all-to-all of rows, with its backward   each row for another rank, once
expert_parallel.py  E/ep experts on each rank                      4 exchanges a step and the counts
dropless.py         no capacity: ragged row groups (MegaBlocks)    the same, and nothing dropped
overlapped.py       rows in flight while other work is computed    4 exchanges, the counts twice
limited.py          at most M ranks for a token (DeepSeek-V2)      each row once per rank needing it
gradients.py        experts beside data parallelism                experts' gradients over their
                                                                   copies, others over all ranks
gpt.py              a GPT whose every other MLP is a mixture       as its layers
seeds.py            mixture against dense, three seeds, stored:    nothing
                    seeds.json, made by `python -m lib.moe`

n tokens of one set, D hidden, E experts, k choices a token, C slots per expert and set, m kept
pairs, ep ranks.

A set is what is routed together: the tokens of one call, of one rank (GShard calls it a group). So
what the ranks compute is what one process computes that calls the layer once per rank's tokens,
drops included.

Experts in 16 bits can have a router in float32 (`layer.bfloat16(); layer.router.float()`): tokens
are widened for the router alone, and the weighted sum has the dtype of the experts.
"""

from lib.moe.balance import Bias, SigmoidBias, auxiliary_loss, z_loss
from lib.moe.capacity import Routing, capacity, dropped, keep, send_on
from lib.moe.choice import Choice, best, load
from lib.moe.correlated import CorrelatedGate, together
from lib.moe.dispatch import combine, combine_einsum, dispatch, dispatch_einsum
from lib.moe.dropless import GroupedExperts, dropless, grouped_mm, slotted
from lib.moe.exchange import exchange_counts, exchange_rows
from lib.moe.expert_choice import expert_choice, experts_take
from lib.moe.expert_parallel import ExpertParallelMoE, transpose_blocks
from lib.moe.gates import gshard_gate, switch_gate, top_k_gate, uniforms
from lib.moe.gpt import MoEGPT, expert_parallel_gpt
from lib.moe.gradients import expert_parameters, reduce_gradients
from lib.moe.layer import MoE, Statistics, run_experts
from lib.moe.limited import OncePerRankMoE, limited_gate
from lib.moe.overlapped import OverlappedMoE, SharedMoE, start_exchange
