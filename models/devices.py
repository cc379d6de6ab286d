"""Devices: which are there, and how tensors get to them without anybody waiting."""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

import torch
from torch import Tensor

from lengthlens.errors import UserError

GPU = "cuda"  # the type of devices that are sent to from pinned memory


def sent(x: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device. From the CPU to a GPU it is copied from pinned memory, so that the host need not wait.

    >>> sent(torch.ones(2), torch.device("cpu"))
    tensor([1., 1.])
    """
    if x.device.type == "cpu" and device.type == GPU and not torch.compiler.is_compiling():  # compilers cannot pin
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


def on_the_cpu() -> AbstractContextManager[object]:
    """In which tensors are made on the CPU; where they are anyway, that costs nothing (`torch.device` slows calls)."""
    return nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")


def named(text: str) -> bool:
    """Whether a text is the name of a device, there or not.

    >>> named("cuda:1"), named("gpu")
    (True, False)
    """
    return re.fullmatch(r"auto|cpu|mps|cuda(:[0-9]{1,3})?", text) is not None


def gpus_for(name: str) -> int:
    """Over how many GPUs work on this device is spread: all that are there, unless one is named or none is meant."""
    return torch.cuda.device_count() if name in ("auto", "cuda") and torch.cuda.is_available() else 0


def take_gpu(place: int) -> None:
    """From here on "cuda" and "auto" mean the GPU of the worker at this place; places take turns."""
    if torch.cuda.is_available():
        torch.cuda.set_device(place % torch.cuda.device_count())


@contextmanager
def arithmetic(deterministic: bool, tf32: bool) -> Iterator[None]:
    """In this context, torch computes the same bits every time, or products with shorter numbers, if asked to.

    What is not asked for is not looked at: torch has two names for the precision of products, and refuses to tell one
    where the other was set.
    """
    with ExitStack() as after:
        if deterministic:
            after.callback(torch.set_deterministic_debug_mode, torch.get_deterministic_debug_mode())
            torch.use_deterministic_algorithms(True)
        if tf32:
            matmul = torch.backends.cuda.matmul
            name, short = ("fp32_precision", "tf32") if hasattr(matmul, "fp32_precision") else ("allow_tf32", True)
            after.callback(setattr, matmul, name, getattr(matmul, name))
            setattr(matmul, name, short)
        yield


class BrokenGpuError(UserError):
    """A GPU that a process cannot use any more, whatever it computes."""


@contextmanager
def working_gpu() -> Iterator[None]:
    """Within, an error after which the GPU answers nothing any more is told apart: all that follows would fail."""
    try:
        yield
    except RuntimeError as error:
        try:
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
        except RuntimeError:
            what = str(error).strip().partition("\n")[0]
            goes_on = "the same command goes on where it was, in a new process (of Dask, with new workers)"
            raise BrokenGpuError(f"the GPU failed ({what}): {goes_on}") from None
        raise


def present_device(name: str) -> torch.device:
    """The device of this name, if it is there; "auto" is cuda where there is one, else cpu.

    >>> present_device("cpu")
    device(type='cpu')
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    here = ["cpu", *(["cuda"] if gpus else []), *(f"cuda:{k}" for k in range(gpus))]
    here += ["mps"] if torch.backends.mps.is_available() else []
    if name == "auto":
        name = "cuda" if gpus else "cpu"
    if name not in here:
        raise UserError(f"there is no device '{name}' here: the choices are {', '.join(['auto', *here])}")
    return torch.device("cuda", torch.cuda.current_device()) if name == "cuda" else torch.device(name)


def device_facts(device: torch.device) -> dict[str, str]:
    """What a run says of the device that it was trained on, beside its versions.

    >>> device_facts(torch.device("cpu"))
    {'device': 'cpu'}
    """
    if device.type != "cuda":
        return {"device": str(device)}
    return {"device": str(device), "gpu": torch.cuda.get_device_name(device), "cuda": str(torch.version.cuda)}
