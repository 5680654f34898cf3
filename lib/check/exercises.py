"""All graded exercises, in the order of the notebooks. Each is a file in the folder of its lab.

Only the kernel imports all of them. A rank receives only the `measure`s of the exercise that is
checked, so it imports only the files that this exercise needs.
"""

from importlib import import_module

FILES = {
    "lab0": (
        "model_state_bytes", "training_days", "four_splits", "send_recv", "broadcast",
        "ring_reduce_scatter",
        "ring_all_gather", "ring_all_reduce", "all_to_all", "all_reduce_time",
        "hierarchical_all_reduce",
        "seconds_lost", "blame",
    ),
    "lab1": (
        "unequal_shards", "naive_data_parallel", "buckets", "overlapped", "accumulate",
        "sample_indices", "diagnose", "parameter_server_step", "loss_scaler", "exposed_seconds",
        "outer_step",
    ),
    "lab2": (
        "balance", "relay_step", "gpipe", "one_f_one_b", "weight_stash", "interleaved",
        "pipeline_report", "zb_h1", "zb_v", "fastest",
    ),
    "lab3": (
        "f_and_g", "linear_layers", "parallel_attention", "vocabulary", "sequence",
        "split_state_dict",
        "merge_attention", "ring_attention", "ulysses_attention",
    ),
    "lab4": (
        "rank_state_bytes", "zero1", "zero2", "fsdp", "recompute", "choose_remedy",
        "prefetching_fsdp", "muon", "async_checkpoint",
    ),
    "lab5": (
        "gates", "assign_slots", "auxiliary_loss", "dispatch_combine", "expert_parallel",
        "reduce_gradients",
        "hide_exchange", "dropless_experts",
    ),
    "lab6": (
        "mesh", "average_over_mesh", "norm_over_mesh", "hybrid_by_hand", "findings", "plan_costs",
        "choose_plan",
        "shares", "goodput", "capstone",
    ),
}  # fmt: skip
MODULES = [
    import_module(f"lib.check.{lab}.{file}") for lab, files in FILES.items() for file in files
]
EXERCISES = {module.EXERCISE.name: module.EXERCISE for module in MODULES}
FUNCTIONS = {part.name: part for exercise in EXERCISES.values() for part in exercise.parts}
