"""Lab 6's graded exercises, one file each, in the order of the notebook and with its sections:

    mesh.py               1  coordinates, ranks, groups along axes
    average_over_mesh.py  2  which ranks a gradient is averaged over
    norm_over_mesh.py     2  the norm of gradients that are sharded over the ranks
    hybrid_by_hand.py     2  a full training step on a mesh
    findings.py           2  the hunt: which of ten jobs has which mistake
    plan_costs.py         4  bonus: a plan's memory, bubble and messages
    capstone.py           5  memory, seconds, MFU and main costs estimated by hand
    capstone_plans.py     5  plans for four jobs
    choose_plan.py        7  bonus: the fastest plan that fits
    shares.py             8  bonus: a batch divided among ranks of unequal speed
    goodput.py            9  bonus: what failures cost a job, and how often to save

What they use:

    on_a_mesh.py              the meshes, most of 8 ranks, and the parameters on them
    choose_plan_jobs.py       the jobs for which choose_plan is called
    capstone_jobs.py          the capstone's jobs, the plans that it asks about, and what the cost
                              model predicts for them
    capstone_told.py          what the capstone's cells print, with published runs and the cost
                              model for comparison
"""

__all__ = [
    "average_over_mesh", "capstone", "capstone_jobs", "capstone_plans", "capstone_told",
    "choose_plan", "choose_plan_jobs", "findings", "goodput", "hybrid_by_hand", "mesh",
    "norm_over_mesh", "on_a_mesh", "plan_costs", "shares",
]  # fmt: skip
