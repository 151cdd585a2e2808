"""Ranks: the processes that train one policy together, and this one among them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn

TIMEOUT = timedelta(hours=1)
"""How long a process waits for the others, unless told otherwise: more than the slowest rollout batch takes."""


class Ranks:
    """One process, alone. `Together` is the same over several.

    Args:
        device: on which this process computes.
    """

    rank: int = 0
    """The number of this process."""
    count: int = 1
    """How many there are."""
    sharded: bool = False
    """Whether `wrap` cuts parameters up over the processes: an engine in the same process then needs a copy."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)

    @property
    def leads(self) -> bool:
        """Whether this process is the one that logs and saves."""
        return self.rank == 0

    def wrap(self, module: nn.Module, half: bool = False) -> nn.Module:
        """The module as it is to be called: all processes begin with the parameters of the first one, and gradients
        become the mean over all processes. All must call it; make the optimiser afterwards.

        Args:
            module: is on the device of this process. One that is sharded is changed itself.
            half: whether the module computes in bfloat16; a sharded one is then put together in it.
        """
        return module

    def accumulating(self, modules: Sequence[nn.Module], last: bool) -> AbstractContextManager[Any]:
        """Around the forward and backward passes of a micro-batch, over modules that `wrap` gave: gradients need not be
        shared before the last one."""
        return nullcontext()

    def total(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over all processes. All must call it."""
        return tensor

    def gather(self, items: Any) -> list[Any]:
        """What each process holds, by rank. All must call it."""
        return [items]


ALONE = Ranks()


class Together(Ranks):
    """This process among several that a launcher started, which stay equal: DDP, or FSDP2 where `shard` says so.

    Args:
        device: of which type; its number is that of the process on its machine.
        shard: whether parameters, gradients and the state of the optimiser are cut up over the processes.
        timeout: how long a process waits for the others in a collective before it gives up.

    Raises:
        ValueError: if accelerate was configured to do more than to start the processes.
    """

    def __init__(self, device: torch.device | str, shard: bool = False, timeout: timedelta = TIMEOUT) -> None:
        from accelerate import Accelerator
        from accelerate.utils import DistributedDataParallelKwargs, DistributedType, InitProcessGroupKwargs

        ddp = DistributedDataParallelKwargs(gradient_as_bucket_view=True)
        group = InitProcessGroupKwargs(timeout=timeout)
        on_cpu = torch.device(device).type == "cpu"
        self._accelerator = Accelerator(cpu=on_cpu, mixed_precision="no", kwargs_handlers=[ddp, group])
        kind = self._accelerator.distributed_type
        if kind not in (DistributedType.MULTI_CPU, DistributedType.MULTI_GPU):
            raise ValueError(
                f"accelerate was configured for {kind.value}: launch with plain --multi_gpu or --cpu, for sharding is "
                "chosen by the program and done by torch's FSDP2"
            )
        super().__init__(self._accelerator.device)
        self.rank, self.count, self.sharded = self._accelerator.process_index, self._accelerator.num_processes, shard

    def wrap(self, module: nn.Module, half: bool = False) -> nn.Module:
        """See `Ranks.wrap`. A module without a parameter that is trained is sharded, or left as it is."""
        if self.sharded:
            self._begin_equal(module)
            _shard(module, self.device, half)
        elif any(parameter.requires_grad for parameter in module.parameters()):
            return self._accelerator.prepare_model(module)
        return module

    def accumulating(self, modules: Sequence[nn.Module], last: bool) -> AbstractContextManager[Any]:
        """See `Ranks.accumulating`."""
        held = ExitStack()
        # A sharded module shares its gradients after every micro-batch, for until then they are as large as all its
        # parameters: memory is what sharding is for.
        if not last and not self.sharded:
            for module in modules:
                held.enter_context(self._accelerator.no_sync(module))
        return held

    def total(self, tensor: Tensor) -> Tensor:
        """See `Ranks.total`."""
        total = self._accelerator.reduce(tensor, "sum")
        assert isinstance(total, Tensor)
        return total

    def gather(self, items: Any) -> list[Any]:
        """See `Ranks.gather`."""
        from accelerate.utils import gather_object

        return gather_object([items])

    @torch.no_grad()
    def _begin_equal(self, module: nn.Module) -> None:
        """Give the module the parameters of the first process, as DDP does by itself."""
        for tensor in (*module.parameters(), *module.buffers()):
            first = tensor.to(self.device, copy=True)
            torch.distributed.broadcast(first, 0)
            tensor.copy_(first)


def open_ranks(shard: bool = False, device: torch.device | str | None = None, timeout: timedelta = TIMEOUT) -> Ranks:
    """This process among those that `torchrun` or `accelerate launch` started with it; alone if there are no others.

    Args:
        shard: cut parameters up over the processes (FSDP2) rather than hold them in each (DDP).
        device: a GPU where there is one, unless given.
        timeout: see `Together`.

    Raises:
        ValueError: if there is no such device, or accelerate was configured to do more than to start the processes.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return Together(device, shard, timeout)
    return Ranks(usable_device(device))


def usable_device(name: torch.device | str) -> torch.device:
    """The device of that name. Raises ValueError if it cannot be used here."""
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # AssertionError: torch without CUDA
        reason = str(error).splitlines()[0]
        raise ValueError(f"the device {str(name)!r} cannot be used here: {reason}") from error


def _shard(module: nn.Module, device: torch.device, half: bool) -> None:
    """Cut a module up, layer by layer: what is put together at once is one layer, beside embeddings and head."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    dtypes = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if half else MixedPrecisionPolicy()
    layers = {name for part in module.modules() for name in getattr(part, "_no_split_modules", None) or ()}
    for part in list(module.modules()):
        if type(part).__name__ in layers:
            fully_shard(part, mesh=mesh, mp_policy=dtypes)
    fully_shard(module, mesh=mesh, mp_policy=dtypes)


def whole(tensor: Tensor) -> Tensor:
    """A tensor in one piece, put together where processes hold a part each; all of them must call it."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor.detach() if gather is None else gather().detach()


def share(parts: list[list[int]], rank: int, count: int) -> list[list[int]]:
    """The micro-batches that fall to a rank, as many for each; [] where a rank has nothing to do.

    Neighbours, which are of similar length, are dealt out in turn, so that no rank waits long for another.
    """
    rounds = -(-len(parts) // count)
    mine = parts[rank::count]
    return mine + [[]] * (rounds - len(mine))
