"""GPUs that are pretended: tensors that hold real numbers on the CPU, say ``cuda:0``, and keep CUDA's rules.

They sit on torch's backend for devices that are written in Python. Code that is right here is right about devices on a
GPU; what only a GPU can show is speed, bfloat16 and the order of its sums. Unlike under FakeTensorMode, code whose
course depends on numbers goes on.

>>> with pretended_gpus(2) as gpus:
...     x = torch.ones(3, device="cuda:1") + 1
>>> gpus.kernels, gpus.waits, str(x.device)
(2, 0, 'cuda:1')
"""

import math
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

aten = torch.ops.aten
BACKEND = "pretended"  # what torch's C++ code believes, of one device (its Python backend has no more)
# The host has to wait for the device to know the shape of what these give.
SHAPES = {aten.nonzero.default, aten.masked_select.default, aten.unique_dim.default, aten._unique2.default}
SHAPES |= {aten.bincount.default, aten.repeat_interleave.Tensor, aten.unique_consecutive.default}
ANSWERS = {aten._local_scalar_dense.default, aten.is_nonzero.default, aten.equal.default, aten.item.default}
INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
MULTI_TENSOR = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}  # how many tensors one launch takes, by lists (torch's own table)
FREE = {aten.detach.default, aten.detach_.default, aten.set_.source_Storage, aten.record_stream.default}
FREE |= {aten.empty.memory_format, aten.empty_strided.default, aten.empty_like.default, aten.new_empty.default}
FREE |= {aten.new_empty_strided.default, aten._unsafe_view.default, aten._reshape_alias.default}
FREE |= {aten.lift_fresh.default, aten.is_pinned.default}


class Pretended(Tensor):
    """A tensor of a pretended GPU; `host` has its numbers."""

    host: Tensor
    index: int

    @staticmethod
    def __new__(cls, host: Tensor, index: int) -> "Pretended":
        layout = {"strides": host.stride(), "storage_offset": host.storage_offset()}
        about: Any = {"dtype": host.dtype, "device": torch.device(BACKEND, 0), "requires_grad": host.requires_grad}
        made: Pretended = Tensor._make_wrapper_subclass(cls, host.shape, **layout, **about)  # type: ignore[attr-defined]
        made.host, made.index = host.detach(), index
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", self.index)

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        return f"{self.host!r} on {self.device}"

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} outside of pretended_gpus")


class Gpus(TorchDispatchMode):
    """Computes on pretended GPUs and counts: kernels launched, waits of the host, tensors of float64."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count, self.pinned = count, set[int]()  # storages
        self.current = self.last = 0
        self.devices: Counter[int] = Counter()  # kernels by device
        self.reset()

    def reset(self) -> None:
        self.kernels = self.waits = self.doubles = 0
        self.launched, self.waited = Counter[str](), Counter[str]()
        self.devices.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        asked = kwargs.get("device")
        index = _index(asked)
        if asked is not None and asked.type == BACKEND:
            index = self.last  # torch's own code, which knows no number: as what was computed before
        if index is not None and index >= self.count:
            raise RuntimeError(f"CUDA error: invalid device ordinal ({asked})")
        if func is aten._to_copy.default or func is aten.copy_.default or func is aten._pin_memory.default:
            return self._copied(func, args, kwargs, index)
        if func is aten.is_pinned.default:
            return args[0].untyped_storage()._cdata in self.pinned
        given = [x for x in tree_iter((args, kwargs)) if isinstance(x, Tensor)]
        there = {x.index for x in given if isinstance(x, Pretended)}
        if not there and index is None:
            pin = kwargs.pop("pin_memory", False)
            made = func(*args, **kwargs)
            return self._pin(made) if pin else made
        self._refuse_mixed(func, given, there, args)
        at = index if index is not None else next(iter(there))
        if asked is not None:
            kwargs["device"] = torch.device("cpu")
            if index is None:
                raise RuntimeError(f"{func} from {there} to {asked}")
        self.last = at
        self._count(func, args, given, at)
        out = func(*tree_map(_host, args), **tree_map(_host, kwargs))
        return self._wrapped(func, out, args, at)

    def _wrapped(self, func: Any, out: Any, args: Any, at: int) -> Any:
        same = {id(x.host): x for x in tree_iter(args) if isinstance(x, Pretended)}  # what was written in place

        def wrap(x: Any) -> Any:
            if not isinstance(x, Tensor) or isinstance(x, Pretended):
                return x
            if id(x) in same:
                return same[id(x)]
            made = Pretended(x, at)
            self.doubles += not func.is_view and x.dtype == torch.float64
            return made

        return tree_map(wrap, out)

    def _refuse_mixed(self, func: Any, given: list[Tensor], there: set[int], args: Any) -> None:
        """CUDA's rules: one device, but for numbers without dimensions, and indices that are on the CPU."""
        allowed = args[1] if func in INDEXED else ()
        names = {f"cuda:{k}" for k in there}
        for x in given:
            if not isinstance(x, Pretended) and x.dim() > 0 and not any(x is each for each in allowed):
                names.add(str(x.device))
        if len(names) > 1:
            found = ", ".join(sorted(names))
            raise RuntimeError(f"Expected all tensors to be on the same device, but found {found} ({func})")
        if func in INDEXED and any(isinstance(each, Tensor) and not isinstance(each, Pretended) for each in allowed):
            self._wait(f"{func} with indices of the CPU")

    def _count(self, func: Any, args: Any, given: list[Tensor], at: int) -> None:
        name = str(func)
        if func in SHAPES or func in ANSWERS:
            self._wait(name)
        if func in INDEXED and any(isinstance(x, Tensor) and x.dtype == torch.bool for x in args[1]):
            self._wait(f"{name} with a mask")
        if func.is_view or func in FREE or func in ANSWERS:
            return
        number = 1
        lists = [x for x in args if isinstance(x, list) and x and isinstance(x[0], Tensor)]
        if "_foreach" in name or "_fused" in name:
            number = math.ceil(len(lists[0]) / MULTI_TENSOR[min(5, len(lists))])
        self._launch(name, at, number)

    def _launch(self, name: str, at: int, number: int = 1) -> None:
        self.kernels += number
        self.devices[at] += number
        self.launched[name] += number

    def _pin(self, x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        self.pinned.add(storage._cdata)
        weakref.finalize(storage, self.pinned.discard, storage._cdata)
        return x

    def _wait(self, why: str) -> None:
        self.waits += 1
        self.waited[why] += 1

    def _copied(self, func: Any, args: Any, kwargs: dict[str, Any], index: int | None) -> Any:
        """Copies between devices: the host waits unless they are asked not to and the host's side is pinned."""
        if func is aten._pin_memory.default:
            if isinstance(args[0], Pretended):
                raise RuntimeError("cannot pin 'torch.cuda' tensor only dense CPU tensors can be pinned")
            return self._pin(args[0].clone())
        if func is aten.copy_.default:
            to, source = args[0], args[1]
            no_wait = bool(args[2]) if len(args) > 2 else bool(kwargs.get("non_blocking"))
            self._cross(_device_of(source), _device_of(to), no_wait, source if _device_of(source).type == "cpu" else to)
            _host(to).copy_(_host(source))
            return to
        source = args[0]
        no_wait = kwargs.pop("non_blocking", False)
        kwargs.pop("pin_memory", None)
        asked = kwargs.pop("device", None)
        here = _device_of(source)
        target = here if asked is None else (torch.device("cpu") if index is None else torch.device("cuda", index))
        copy = func(_host(source), **kwargs)
        self._cross(here, target, no_wait, source if here.type == "cpu" else None)
        return copy if target.type == "cpu" else self._wrapped(func, copy, (), target.index)

    def _cross(self, here: torch.device, there: torch.device, no_wait: bool, host_side: Tensor | None) -> None:
        if here.type == there.type == "cpu":
            return
        way = "copy" if here == there else f"copy {here.type} to {there.type}"
        self._launch(way, there.index if there.type == "cuda" else here.index)
        pinned = host_side is not None and host_side.untyped_storage()._cdata in self.pinned
        if here.type != there.type and not (no_wait and pinned):
            self._wait(way)


class Numbered(TorchFunctionMode):
    """Says ``cuda:0`` wherever ``cuda`` is said: without a number, torch would ask the driver for one."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        if func in (torch.tensor, torch.as_tensor) and _index(_numbered((kwargs or {}).get("device"))) is not None:
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(_numbered(device))  # as torch does, but outside of any dispatch
        if func is scaled_dot_product_attention and isinstance(args[0], Pretended) and not kwargs.get("attn_mask"):
            return aten._scaled_dot_product_flash_attention_for_cpu(*args, **kwargs)[0]  # fused, as on a GPU
        if func in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[0], Pretended):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)  # lists would go around us
            args = (args[0], tuple(torch.tensor(x) if isinstance(x, list) else x for x in index), *args[2:])
        if func is Tensor.tolist and isinstance(args[0], Pretended):
            return args[0].cpu().tolist()
        if func is Tensor.cuda:
            return args[0].to(_numbered(args[1] if len(args) > 1 else torch.device("cuda")))
        return func(*map(_numbered, args), **{name: _numbered(value) for name, value in (kwargs or {}).items()})


def _numbered(x: Any) -> Any:
    bare = isinstance(x, torch.device) and x.type == "cuda" and x.index is None
    return torch.device("cuda", torch.cuda.current_device()) if bare or (isinstance(x, str) and x == "cuda") else x


def _host(x: Any) -> Any:
    return x.host if isinstance(x, Pretended) else x


def _index(device: Any) -> int | None:
    """The number of a pretended GPU; None for any other device."""
    device = torch.device(device) if isinstance(device, str) else device
    if device is None or device.type not in ("cuda", BACKEND):
        return None
    return device.index or 0


def _device_of(x: Tensor) -> torch.device:
    return x.device if isinstance(x, Pretended) else torch.device("cpu")


@cache
def prepare() -> None:
    """Make the backend known to torch, once in a process, before anything has a gradient."""
    _setup_privateuseone_for_python_backend(BACKEND)
    getattr(torch, BACKEND).get_amp_supported_dtype = lambda: [torch.bfloat16]  # torch asks when it repeats a block


@contextmanager
def pretended_gpus(count: int = 1) -> Iterator[Gpus]:
    """Meanwhile there are so many GPUs; what they are asked to do is counted."""
    prepare()
    cuda: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "device_count": lambda: count,
        "current_device": lambda: gpus.current,
        "set_device": lambda index: setattr(gpus, "current", index),
    }
    cuda |= {"get_device_name": lambda device=None: "pretended", "synchronize": lambda device=None: None}
    gpus = Gpus(count)
    # Inference mode and tensors that are written in Python do not go together.
    plain = mock.patch.object(torch, "inference_mode", torch.no_grad)
    with mock.patch.multiple(torch.cuda, **cuda), plain, Numbered(), gpus:
        yield gpus
