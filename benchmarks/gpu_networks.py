"""Networks and data of the GPU benchmarks: ResNet-18, new or briefly trained, and stubs for missing packages."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import torch
from gpu_timing import Settings
from measures import conv_net
from step_overhead import resnet18
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

import steppe
from steppe.cuda.capture import capture
from steppe.data import small_images
from steppe.data.augment import augmentation
from steppe.data.catalogue import CIFAR10_BATCHES, DATASETS
from steppe.data.dataset import Dataset
from steppe.data.feed import BatchStream
from steppe.data.pixels import Standard
from steppe.nn.registry import build

STEPS, BATCH = 800, 128  # of training: about 5 s at width 64 on an H200, and 3 s at width 16
ROWS = 12_800  # of the synthetic task
_SUFFIXES = (".bin", "")  # of files in the binary and in the Python layout
WRONG = 0.1  # share of wrong labels, so that no loss is zero: a network that fits everything has no curvature


def side(settings: Settings) -> int:
    return 8 if settings.quick else 32


def images(settings: Settings, rows: int) -> tuple[Tensor, Tensor]:
    """Random images with random labels."""
    x = torch.randn(rows, 3, side(settings), side(settings), device=settings.device)
    return x.contiguous(memory_format=torch.channels_last), torch.randint(0, 10, (rows,), device=settings.device)


def loss_fn(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.autocast(x.device.type, torch.bfloat16):
        return cross_entropy(model(x), y)


def fresh(settings: Settings, width: int, kernels: str | None = None) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = (conv_net if settings.quick else resnet18)(width).to(settings.device).to(memory_format=torch.channels_last)
    chosen = {} if kernels is None else {kernels: True}
    return model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4, **chosen)


def channels_last_resnet18(shape: tuple[int, ...], outputs: int, width: int = 64) -> nn.Module:
    """A model factory for configurations: steppe's ResNet-18 in channels-last format, for tensor cores."""
    return build("resnet18", shape, outputs, width=width).to(memory_format=torch.channels_last)


def compiled_resnet18(shape: tuple[int, ...], outputs: int, width: int = 64) -> nn.Module:
    """A model factory for configurations: the same, compiled."""
    model = channels_last_resnet18(shape, outputs, width)
    model.compile(dynamic=False)
    return model


def small_conv(shape: tuple[int, ...], outputs: int, width: int = 32) -> nn.Module:
    """A model factory for configurations: four convolutions without norm layers."""
    layers: list[nn.Module] = []
    before = shape[0]
    for i in range(4):
        after = width << min(i, 2)
        layers += [nn.Conv2d(before, after, 3, 2 if i else 1, 1), nn.ReLU()]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, outputs))


@dataclass(frozen=True)
class Trained:
    """A network in eval mode and some of its training rows, without augmentation."""

    model: nn.Module
    rows: tuple[Tensor, Tensor]
    about: str

    def batches(self, count: int, size: int) -> list[tuple[Tensor, Tensor]]:
        x, y = self.rows
        return [(x[i * size : (i + 1) * size], y[i * size : (i + 1) * size]) for i in range(count)]


@lru_cache
def trained(width: int, settings: Settings, most: int = 1024) -> Trained:
    """ResNet-18 after some captured SAM steps, on CIFAR-10 if it is available."""
    data, source = task(settings)
    steps, size = (4, 16) if settings.quick else (STEPS, BATCH)
    model, base = fresh(settings, width)
    opt = steppe.build("sam", base, model=model)
    standard = Standard.of(data)
    feed = BatchStream(data, size, 0, augmentation(("crop", "flip"), 10) if source else None, standard)
    take, number = None, 0
    while number < steps:
        for x, y in feed.epoch(number // len(feed)):
            for group in opt.param_groups:
                group["lr"] = 0.1 * (1 - number / steps)
            take = take or capture(opt, loss_fn, model, (x, y))
            loss = take(x, y)
            number += 1
            if number == steps:
                break
    rows = data.rows(slice(most))
    model = model.eval().to(memory_format=torch.contiguous_format)
    for p in model.parameters():
        p.grad = None
    size = sum(p.numel() for p in model.parameters()) / 1e6
    where = (
        f"{source}, standardised" if standard.mean else source or "Gaussian class means, a tenth of the labels wrong"
    )
    about = (
        f"{'A small ResNet' if settings.quick else 'ResNet-18'} of width {width} ({size:.2f} M parameters), {steps} "
        f"{'captured ' if take.why is None else ''}SAM steps of {feed.batch_size} rows on {where}, last loss "
        f"{float(loss):.3f}"
    )
    return Trained(model, (standard(rows.inputs).contiguous(), rows.targets), about)


@lru_cache
def task(settings: Settings) -> tuple[Dataset, str]:
    """Training data, and its description if it is CIFAR-10."""
    if settings.data is not None:
        data = cifar10(settings.data)
        return data.to(settings.device), f"{len(data):,} images of CIFAR-10, cropped and flipped"
    draws = torch.Generator().manual_seed(0)
    rows = 64 if settings.quick else ROWS
    means = interpolate(torch.randn(10, 3, 4, 4, generator=draws), (side(settings), side(settings)), mode="bilinear")
    labels = torch.randint(0, 10, (rows,), generator=draws)
    x = 0.5 * means[labels] + torch.randn(rows, *means.shape[1:], generator=draws)
    wrong = torch.rand(rows, generator=draws) < WRONG
    labels = torch.where(wrong, torch.randint(0, 10, (rows,), generator=draws), labels)
    return Dataset("class means", x, labels, tuple("0123456789")).to(settings.device), ""


def cifar10(root: Path) -> Dataset:
    """The training images of CIFAR-10 in all files that exist, in the root or in the published folder below it."""
    places = dict.fromkeys(place for layout in DATASETS["cifar10"].layouts for place in layout.places)
    for folder in (root, *(root / place for place in places)):
        names = [name for name in CIFAR10_BATCHES if any((folder / f"{name}{end}").is_file() for end in _SUFFIXES)]
        if names:
            classes = small_images._cifar_classes(folder, "cifar10")
            return small_images._cifar_part(folder, "cifar10", tuple(names), classes)
    raise FileNotFoundError(
        f"{root} has no data_batch_1.bin or data_batch_1 of CIFAR-10, nor do its folders {[*places]}"
    )


@lru_cache
def stand_in_for_missing() -> str:
    """Stubs the packages that training imports and the machine lacks; returns a note about the differences.

    Checkpoints then use torch.save instead of safetensors; the benchmarks do not read them.
    """
    missing = [name for name in ("safetensors", "yaml", "filelock") if name not in sys.modules and not find_spec(name)]
    for name in missing:
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__spec__ = ModuleSpec(name, None)  # find_spec on a module without one raises
    if "safetensors" in missing:
        sys.modules["safetensors.torch"] = inner = ModuleType("safetensors.torch")
        sys.modules["safetensors"].SafetensorError = type("SafetensorError", (Exception,), {})  # type: ignore[attr-defined]
        sys.modules["safetensors"].safe_open = sys.modules["safetensors"].torch = inner.load = None  # type: ignore[attr-defined]
        inner.save = _save  # type: ignore[attr-defined]
    if "filelock" in missing:
        sys.modules["filelock"].FileLock = sys.modules["filelock"].Timeout = type("Absent", (Exception,), {})  # type: ignore[attr-defined]
    if not missing:
        return ""
    return f"Not installed: {', '.join(missing)}; checkpoints are written with torch.save."


def _save(tensors: dict[str, Tensor], metadata: object = None) -> bytes:
    out = io.BytesIO()
    torch.save((tensors, metadata), out)
    return out.getvalue()
