# SPDX-License-Identifier: Apache-2.0
"""torch tensors and numpy arrays as addresses, strides and dtypes, without copies; what cannot be taken is refused."""
import sys

import numpy as np

from tersekv import _core

NO_CUDA = "this build has no CUDA: use device='cpu', or a wheel that was built with it"
HAS_CUDA = bool(_core.cuda_kernels())  # a constant: torch.compile cannot trace calls into the module
NOT_ON_CUDA = "this runs on the CPU: pass x.cpu()"
_NUMPY_DTYPES = {"float32": 0, "float16": 1}
_TORCH_DTYPES = {"torch.float32": 0, "torch.float16": 1, "torch.bfloat16": 2}
ITEM_BYTES = (4, 2, 2)


def check_device(device):
    """'cpu', or an error that says what this build cannot do."""
    kind = str(getattr(device, "type", device)).split(":")[0]
    if kind == "cpu":
        return "cpu"
    if kind == "cuda" and HAS_CUDA:
        return "cuda"
    if kind == "cuda":
        raise ValueError(NO_CUDA)
    raise ValueError(f"device '{device}' is not known: 'cpu' or 'cuda'")


def is_torch(x):
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def dtype_code(x):
    """0 float32, 1 float16, 2 bfloat16; TypeError for the rest."""
    name = str(x.dtype)
    code = (_TORCH_DTYPES if is_torch(x) else _NUMPY_DTYPES).get(name)
    if code is None:
        known = "float32, float16 or bfloat16" if is_torch(x) else "float32 or float16"
        raise TypeError(f"dtype {name.removeprefix('torch.')} is not taken: convert to {known} first")
    return code


def rows_of(x, head_dim, name="x"):
    """(address, dtype, leading sizes, leading byte strides) of an array [..., head_dim]."""
    torch_like = is_torch(x)
    if not torch_like and not isinstance(x, np.ndarray):
        raise TypeError(f"{name} is a {type(x).__name__}: a torch tensor or a numpy array is needed")
    if torch_like and check_device(x.device) != "cpu":
        raise ValueError(NOT_ON_CUDA)
    code = dtype_code(x)
    shape = tuple(x.shape)
    if not shape or shape[-1] != head_dim:
        raise ValueError(f"{name} has shape {list(shape)}: its last dimension must be head_dim = {head_dim}")
    if torch_like and x.requires_grad:
        x = x.detach()
    strides = [s * ITEM_BYTES[code] for s in x.stride()] if torch_like else list(x.strides)
    if head_dim > 1 and strides[-1] != ITEM_BYTES[code]:
        raise ValueError(f"{name} is not contiguous in its last dimension (a step of {strides[-1]} bytes between values "
                         f"of {ITEM_BYTES[code]}): pass {name}.contiguous() or numpy.ascontiguousarray({name})")
    sizes, strides = list(shape[:-1]), strides[:-1]
    if len(sizes) > 4:
        raise ValueError(f"{name} has {len(shape)} dimensions: the most is 5, flatten the leading ones")
    address = x.data_ptr() if torch_like else x.__array_interface__["data"][0]
    return address, code, sizes, strides
