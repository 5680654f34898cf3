"""Mixture of experts: many MLPs in place of one, of which each token uses k (Shazeer et al. 2017).

    x --router--> logits --gate--> choice --capacity--> routing      which token to which expert
    x --dispatch--> routed tokens --exchange--> experts --exchange--> routed tokens --combine--> y

file                what it is                                     sent
------------------  ---------------------------------------------  ---------------------------------
choice.py           which experts each token chooses               nothing
gates.py            top-1 (Switch), top-k, top-2 sampled (GShard)  nothing
expert_choice.py    experts choose tokens                          nothing
correlated.py       experts that are chosen together               nothing
capacity.py         C slots per expert: assign, drop, or reroute   nothing
balance.py          auxiliary loss, z-loss, expert bias            nothing
dispatch.py         tokens to slots and back: einsum, sorting      nothing
layer.py            all of it, in one process                      nothing
exchange.py         uneven all-to-all of routed tokens, with its   each token for another rank, once
                    backward
expert_parallel.py  E/ep experts on each rank                      4 exchanges a step and the counts
dropless.py         no capacity: grouped GEMM (MegaBlocks)         the same, and nothing dropped
overlapped.py       tokens in flight while others are computed     8 half exchanges, counts twice
device_limited.py   at most M ranks for a token (DeepSeek-V2)      once per rank that needs it
gradients.py        experts together with data parallelism         experts' gradients over their
                                                                   replicas, others over all ranks
gpt.py              a GPT whose every other MLP is a mixture       as its layers
balance_runs.py     three ways to balance, and none, trained on    the gradients, and choices or
                    ranks whose texts differ                       loads
seeds.py            mixture against dense, three seeds, stored:    nothing
                    seeds.json, made by `python -m lib.moe`
compare.py          each distributed part against one process      as what it compares
paced.py            experts that sleep instead of computing        as their layers

n tokens of one set, D hidden, E experts, k choices a token, C slots per expert and set, m kept
pairs, ep ranks. The routed tokens are the rows of an (m, D) tensor: a token occurs in it once for
each of its kept pairs (token, expert).

Megatron Core's names for these files: router (gates.py, balance.py), token dispatcher with permute
and unpermute (dispatch.py, exchange.py, expert_parallel.py), grouped MLP (dropless.py).

A set is the tokens that are routed together: those of one call on one rank (GShard calls it a
group). Therefore the ranks compute the same as a single process that calls the layer once for each
rank's tokens, and they drop the same pairs.

A layer whose experts have 16 bits can have a router in float32 (`layer.bfloat16();
layer.router.float()`). The tokens are then converted to float32 for the router only, and the
weighted sum has the dtype of the experts.
"""

from lib.moe.balance import ExpertBiasGate, SigmoidExpertBiasGate, auxiliary_loss, z_loss
from lib.moe.capacity import Routing, assign_slots, capacity, dropped, reroute
from lib.moe.choice import Choice, load, top_k_indices
from lib.moe.correlated import CorrelatedGate, co_activation_counts, placed, placement
from lib.moe.device_limited import DeduplicatedMoE, device_limited_gate
from lib.moe.dispatch import combine, combine_einsum, dispatch, dispatch_einsum
from lib.moe.dropless import GroupedExperts, dropless, grouped_mm, padded_to_capacity
from lib.moe.exchange import exchange_counts, exchange_tokens
from lib.moe.expert_choice import assign_by_expert_choice, expert_choice
from lib.moe.expert_parallel import ExpertParallelMoE, transpose_blocks
from lib.moe.gates import gshard_gate, switch_gate, top_k_gate, uniform_per_token
from lib.moe.gpt import MoEGPT, expert_parallel_gpt
from lib.moe.gradients import expert_parameters, reduce_gradients
from lib.moe.layer import MoE, Statistics, run_experts
from lib.moe.overlapped import OverlappedMoE, SharedMoE, start_exchange

__all__ = [
    "Choice", "CorrelatedGate", "DeduplicatedMoE", "ExpertBiasGate", "ExpertParallelMoE",
    "GroupedExperts", "MoE", "MoEGPT", "OverlappedMoE", "Routing", "SharedMoE",
    "SigmoidExpertBiasGate", "Statistics", "assign_by_expert_choice", "assign_slots",
    "auxiliary_loss", "capacity", "co_activation_counts", "combine", "combine_einsum",
    "device_limited_gate", "dispatch", "dispatch_einsum", "dropless", "dropped",
    "exchange_counts", "exchange_tokens", "expert_choice", "expert_parallel_gpt",
    "expert_parameters", "grouped_mm", "gshard_gate", "load", "padded_to_capacity",
    "placed", "placement",
    "reduce_gradients", "reroute", "run_experts", "start_exchange", "switch_gate", "top_k_gate",
    "top_k_indices", "transpose_blocks", "uniform_per_token", "z_loss",
]  # fmt: skip
