"""Import this before a rival that imports torchvision: none of the workloads needs it, but two rivals load it anyway.

torchvision's wheel on PyPI is built against the CUDA build of PyTorch. With a CPU build its extension does not load,
and the import fails where Python functions are attached to two operators of that extension. Declaring them is enough.
"""

import sys

import torch

try:
    import torchvision
except RuntimeError:
    for module in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[module]
    LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision  # noqa: F401
