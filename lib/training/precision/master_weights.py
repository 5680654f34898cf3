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

The master adds up updates that fp16 cannot represent, and its copy changes once their sum is large
enough. It costs 4 bytes per parameter, which ZeRO later divides over the ranks. There a master
belongs to a shard, so the three functions below are given shards.
"""

import torch


def make_masters(parameters):
    """An fp32 copy of each 16-bit parameter, with the same shape and device. A parameter of 32 or
    64 bits is its own master."""
    return [p.detach().float().requires_grad_() if p.element_size() < 4 else p for p in parameters]


@torch.no_grad()
def grads_to_master(parameters, masters):
    """Move each parameter's `.grad` into its master's, in fp32. Like backward, it adds to what is
    already there.

    The 16-bit gradient is dropped, so a second call does not add it again.
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
    """Any torch optimizer, which updates fp32 masters of `parameters`.

        make_adam = lambda masters: torch.optim.AdamW(masters, lr=3e-4)
        optimizer = MasterWeights(model.parameters(), make_adam)
        loss.backward()
        model.average_gradients()  # 16 bits on the wire
        optimizer.grads_to_master()
        optimizer.step()  # or scaler.step(optimizer), which unscales the fp32 gradients first
        optimizer.zero_grad()

    parameters: of any dtypes. A tied one has one master, a frozen one has none. Make it after
    `broadcast_parameters`, because from then on every step overwrites the parameters with the
    masters.
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
        """The parameter groups of the optimizer, which contain masters."""
        return self.optimizer.param_groups

    def grads_to_master(self):
        """Move the gradients to the masters. Call it between the average and the step. See the
        function `grads_to_master`."""
        grads_to_master(self.parameters, self.masters)

    def step(self):
        """Update the masters, and round them into the parameters.

        Raises RuntimeError for a gradient that was not copied up, because the step would ignore it.
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
        """Clear the gradients of parameters and masters."""
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
        """Restore masters and optimizer state bit for bit, and round the masters into the
        parameters.

        Raises ValueError if the shapes of the saved masters are not those of these.
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
