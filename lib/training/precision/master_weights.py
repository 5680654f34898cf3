"""fp32 master weights: the model computes in 16 bits, the optimizer adds in 32 (Micikevicius et al.
2018, section 3.1).

    16 bits   parameter --forward, backward--> gradient             parameter
                                                  | copy up             ^ copy down
    fp32      master -------------------------> gradient --update--> master

Why: near 1 the neighbours of fp16 are 2^-10 = 0.00098 apart (bf16: 2^-7 = 0.0078). An update that
is less than half of that rounds back to where it was, every time:

    fp16                1 + 0.0001 = 1        after 10 steps   1          after 1000 steps   1
    master, fp32        1 + 0.0001 = 1.0001   after 10 steps   1.001      after 1000 steps   1.1
    its copy in fp16                 1                         1.00098                       1.09961

The master collects what fp16 cannot see, and its copy moves once enough has come together. It costs
4 bytes per parameter, which ZeRO later divides over the ranks: there a master is a shard, and the
three functions take shards.
"""

import torch


def make_masters(parameters):
    """An fp32 copy of each 16-bit parameter, same shape and device; a parameter of 32 or 64 bits is
    its own master."""
    return [p.detach().float().requires_grad_() if p.element_size() < 4 else p for p in parameters]


@torch.no_grad()
def grads_to_master(parameters, masters):
    """Move each parameter's `.grad` into its master's, in fp32. Like backward it adds to what is
    there already.

    The 16-bit gradient is dropped: a second call adds nothing twice.
    """
    for parameter, master in zip(parameters, masters, strict=True):
        if master is parameter or parameter.grad is None:
            continue
        gradient = parameter.grad.to(master)
        master.grad = gradient if master.grad is None else master.grad.add_(gradient)
        parameter.grad = None


@torch.no_grad()
def master_to_params(masters, parameters):
    """parameter = round(master), to the nearest number that the parameter's dtype has."""
    for master, parameter in zip(masters, parameters, strict=True):
        if master is not parameter:
            parameter.copy_(master)


class MasterWeights:
    """Any torch optimizer, stepping on fp32 masters of `parameters`.

        make_adam = lambda masters: torch.optim.AdamW(masters, lr=3e-4)
        optimizer = MasterWeights(model.parameters(), make_adam)
        loss.backward()
        model.average_gradients()  # 16 bits on the wire
        optimizer.grads_to_master()
        optimizer.step()  # or scaler.step(optimizer), which unscales the fp32 gradients first
        optimizer.zero_grad()

    parameters: of any dtypes. A tied one has one master, a frozen one has none. Make it after
    `broadcast_parameters`: from then on the masters are the truth, and every step overwrites the
    parameters.
    make_optimizer: called once with `masters`, the list of fp32 masters, one for each of
    `self.parameters`. masters_of: masters_of(parameters) -> their masters.

    With micro-batches, grads_to_master() after each backward sums their gradients in fp32. To
    average in fp32, twice the bytes, call `average_gradients(optimizer.masters)` after
    grads_to_master() instead. A learning-rate schedule takes `optimizer.optimizer`.
    """

    def __init__(self, parameters, make_optimizer, masters_of=make_masters):
        self.parameters = [p for p in dict.fromkeys(parameters) if p.requires_grad]
        self.masters = masters_of(self.parameters)
        self.optimizer = make_optimizer(self.masters)

    @property
    def param_groups(self):
        """The optimizer's, of masters."""
        return self.optimizer.param_groups

    def grads_to_master(self):
        """Between the average and the step: the masters take over the gradients. See the function
        `grads_to_master`."""
        grads_to_master(self.parameters, self.masters)

    def step(self):
        """Update the masters, and round them into the parameters.

        Raises RuntimeError for a gradient that was not copied up: the step would go without it.
        """
        for place, (parameter, master) in enumerate(
            zip(self.parameters, self.masters, strict=True)
        ):
            if master is not parameter and parameter.grad is not None:
                raise RuntimeError(
                    f"parameter {place}, {tuple(parameter.shape)}, still has its {parameter.dtype} "
                    f"gradient: call grads_to_master() between average_gradients() and step()"
                )
        self.optimizer.step()
        master_to_params(self.masters, self.parameters)

    def zero_grad(self):
        """Forget the gradients of both."""
        for tensor in [*self.parameters, *self.masters]:
            tensor.grad = None

    def state_dict(self):
        """The masters themselves (not copies), and the optimizer's state. The parameters follow
        from the masters."""
        return {
            "masters": [master.detach() for master in self.masters],
            "optimizer": self.optimizer.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state):
        """Masters and optimizer state bit for bit, and the parameters rounded from them.

        Raises ValueError if `state` is of other parameters.
        """
        saved, here = (
            [tuple(tensor.shape) for tensor in side] for side in (state["masters"], self.masters)
        )
        if saved != here:
            raise ValueError(
                f"masters of shapes {saved} do not fit {here}: load the state of the same model"
            )
        for master, value in zip(self.masters, state["masters"], strict=True):
            master.copy_(value)
        self.optimizer.load_state_dict(state["optimizer"])
        master_to_params(self.masters, self.parameters)
