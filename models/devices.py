"""Devices: which are there, and how tensors get to them without anybody waiting."""

import torch
from torch import Tensor

from lengthlens.errors import UserError


def sent(x: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device. From the CPU to a GPU it is copied from pinned memory, so that the host need not wait.

    >>> sent(torch.ones(2), torch.device("cpu"))
    tensor([1., 1.])
    """
    if x.device.type == "cpu" and device.type == "cuda":
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


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
