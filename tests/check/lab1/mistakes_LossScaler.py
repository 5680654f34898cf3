"""Known mistakes in LossScaler: edits of lib's code."""

from mistakes import Mistake, edit

SUM, UNSCALE = "all_reduce(overflow, group)", "gradient.div_(self.scale)"
FINITE, GROW = "(~gradient.isfinite()).any()", "if self.good_steps >= self.growth_interval:"
LOOK, SKIP = (
    "for gradient in gradients:\n            overflow",
    "self._back_off()\n            return False",
)
GOOD_STEP = "optimizer.step()\n        self._count_good_step()"
UNSCALE_ALL = f"for gradient in gradients:\n            {UNSCALE}"
MISTAKES = (
    Mistake("the loss is not scaled", edit("return loss * self.scale", "return loss")),
    Mistake("S in the loss's dtype", edit("return loss * self.scale",
        "return loss * torch.tensor(self.scale, dtype=loss.dtype)")),
    Mistake("a parameter without gradient", edit(" if p.grad is not None", "")),
    Mistake("the first parameter group only", edit("in optimizer.param_groups",
        "in optimizer.param_groups[:1]")),
    Mistake("the group is not passed on", edit(SUM, "all_reduce(overflow)")),
    Mistake("only some ranks ask", edit(SUM, f"if overflow: {SUM}")),
    Mistake("every rank for itself", edit(SUM, "all_reduce(overflow.clone(), group)")),
    Mistake("not what it was given", edit(SUM, f"collectives.{SUM}")),
    Mistake("not unscaled", edit(UNSCALE, "pass")),
    Mistake("not unscaled", edit(UNSCALE, "gradient.mul_(self.scale)")),
    Mistake("unscaled twice", edit(UNSCALE, "gradient.div_(self.scale**2)")),
    Mistake("unscaled with the next scale",
            edit(GOOD_STEP, "optimizer.step()").then(UNSCALE_ALL,
                f"self._count_good_step()\n        {UNSCALE_ALL}")),
    Mistake("the loss is looked at", edit(FINITE, "gradient.isnan().any()")),
    Mistake("a sum of gradients overflows",
            edit(LOOK, "for gradient in [sum(one.sum() for one in gradients)]:\n"
                 "            overflow")),
    Mistake("a sum of gradients overflows", edit(FINITE, "~gradient.sum().isfinite()")),
    Mistake("nan is not seen", edit(FINITE, "gradient.isinf().any()")),
    Mistake("-inf is not seen", edit(FINITE, "((gradient > 65504) | gradient.isnan()).any()")),
    Mistake("not every gradient is looked at", edit(LOOK,
        "for gradient in gradients[:1]:\n            overflow")),
    Mistake("a skipped step leaves traces", edit(SKIP,
        f"optimizer.state.clear()\n            {SKIP}")),
    Mistake("not whether it stepped", edit("return True", "return")),
    Mistake("another step", edit("        optimizer.step()\n", "        optimizer.step()\n" * 2)),
    Mistake("grows in every step", edit(GROW, "if True:")),
    Mistake("does not grow in time", edit(GROW, "if False:")),
    Mistake("does not grow in time", edit(GROW, "if self.good_steps > self.growth_interval:")),
    Mistake("the count goes on after growth",
            edit("self.scale *= self.growth\n            self.good_steps = 0",
                 "self.scale *= self.growth")),
    Mistake("the count goes on after growth",
            edit(GROW, GROW.replace(">=", "==")).then(
                "self.scale *= self.growth\n            self.good_steps = 0",
                "self.scale *= self.growth")),
    Mistake("a factor of its own", edit("self.scale *= self.growth", "self.scale *= 2")),
    Mistake("not lowered", edit("self.scale *= self.backoff", "self.scale *= 0.5")),
    Mistake("not lowered", edit("self.scale *= self.backoff", "pass")),
    Mistake("not lowered", edit("self.scale *= self.backoff",
        "self.scale = max(1.0, self.scale * self.backoff)")),
    Mistake("the votes are added up wrongly", edit("overflow.item() > 0",
        "overflow.item() > torch.distributed.get_world_size(group) // 2")),
    Mistake("the count goes on after growth", edit(GROW,
        "if self.good_steps % self.growth_interval == 0:").then(
        "self.scale *= self.growth\n            self.good_steps = 0",
        "self.scale *= self.growth")),
    Mistake("the count goes on after an overflow",
            edit("self.scale *= self.backoff\n        self.good_steps = 0",
                 "self.scale *= self.backoff")),
)  # fmt: skip
