"""Dynamic loss scaling: multiplies the loss by a scale S, so that the gradients are as large as
fp16 can represent, and no larger (Micikevicius et al. 2018, section 3.2).

    size         2^-24        2^-14                                          2^16
    fp16    0 <--- | loses bits | holds every number to 11 bits               | ---> inf
    g            ......---------------
    S g                                     ......---------------

L is the loss and g its gradient. Backward is linear in the loss, so the gradient of S * L is S * g.
We therefore scale the loss, let backward compute S * g in fp16, and divide by S in fp32 afterwards.
If S is a power of two, only the exponent changes and nothing is rounded.

The best S is just below the one that overflows, and it changes during training. So we find it by
trying: after an overflow the step is skipped and S is lowered, and after many good steps in a row S
is raised.

    S   65536  65536  inf!  32768 ... 2000 good steps ... 32768  65536
                      skip
"""

from typing import Any

import torch
from torch import Tensor

from lib import backend, collectives
from lib.backend import Collective, Group

SMALLEST = 2.0**-24  # a gradient that overflows even here is above 1e12, or is nan at every scale


# exercise: lab1.LossScaler
class LossScaler:
    """The scale S of a run on ranks, the same on every rank.

        scaler.scale_loss(loss).backward()
        model.average_gradients()
        stepped = scaler.step(optimizer)
        optimizer.zero_grad()

    scale: S at the start. After growth_interval good steps in a row S is multiplied by growth, and
    after an overflow by backoff. With powers of two nothing is rounded. Raises ValueError unless
    scale > 0, growth > 1, 0 < backoff < 1 and growth_interval >= 1.
    """

    def __init__(
        self,
        scale: float = 2.0**16,
        growth: float = 2.0,
        backoff: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        if not (scale > 0 and growth > 1 and 0 < backoff < 1 and growth_interval >= 1):
            raise ValueError(
                f"scale {scale}, growth {growth}, backoff {backoff}, growth_interval "
                f"{growth_interval}: use scale above 0, growth above 1, backoff between 0 and 1, "
                "an interval of 1 or more"
            )
        self.scale, self.growth, self.backoff, self.growth_interval = (
            scale,
            growth,
            backoff,
            growth_interval,
        )
        self.good_steps = 0  # in a row, at this scale

    def scale_loss(self, loss: Tensor) -> Tensor:
        """S * L. Compute L in fp32, from `logits.float()`, because the gradient of L is S itself,
        and the initial 65536 is above the largest fp16 number, 65504."""
        return loss * self.scale

    def step(
        self,
        optimizer: torch.optim.Optimizer,
        group: Group = None,
        all_reduce: Collective = collectives.all_reduce,
    ) -> bool:
        """Unscale the gradients and step, or skip the step on every rank; returns whether it
        stepped.

        optimizer: its parameters hold S * g in `.grad`, in fp32 or wider (fp16 parameters:
        `MasterWeights`). Their gradients may differ from rank to rank, as shards do: an inf or nan
        on one rank skips the step on all. A skipped step leaves parameters and optimizer state as
        they were.
        Sends: one all-reduce of 1 element, which says whether there was an overflow. Raises
        FloatingPointError, on every rank, when the scale falls below SMALLEST.
        """
        gradients = [
            p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None
        ]
        # (1,)  how many gradients overflow; after the all-reduce, over all ranks
        overflow = torch.zeros(1, device=backend.device())
        for gradient in gradients:
            overflow += (~gradient.isfinite()).any()
        # If only some ranks skipped the step, their parameters and scales would differ from those
        # of the others from then on.
        all_reduce(overflow, group)
        if overflow.item() > 0:
            self._back_off()
            return False
        for gradient in gradients:
            gradient.div_(self.scale)  # g = (S g) / S
        optimizer.step()
        self._count_good_step()
        return True

    def _back_off(self):
        self.scale *= self.backoff
        self.good_steps = 0
        if self.scale < SMALLEST:
            raise FloatingPointError(
                f"the scale has fallen to {self.scale:g}, and still a gradient is inf or nan: "
                f"scaling does not cause it. Look for the first inf or nan in the forward pass, or "
                "lower the learning rate"
            )

    def _count_good_step(self):
        self.good_steps += 1
        if self.good_steps >= self.growth_interval:
            self.scale *= self.growth
            self.good_steps = 0

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: the scale, and the number of good steps in a row at this
        scale."""
        return {"scale": self.scale, "good_steps": self.good_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the scale and the good steps from a `state_dict`. growth, backoff and the
        interval stay as they were given."""
        self.scale, self.good_steps = state["scale"], state["good_steps"]
