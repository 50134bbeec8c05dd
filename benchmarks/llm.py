"""What methods cost in fine-tuning a decoder with LoRA, and all of its weights: time and peak memory beside AdamW.

A decoder as in Llama (RMSNorm, rotary positions, SwiGLU), with random weights, and random tokens: costs do not depend
on them. Passes run under bf16 autocast. With LoRA the decoder's weights are frozen and in bfloat16, and the adapters of
all of its linear layers are in float32; the second table trains all weights, in float32.

Each method's steps alternate with AdamW's in random order. A ratio is that of the means over five steps each, which
have every kind of step of a method once; the table has medians and quartiles. The row of AdamW is AdamW beside itself:
its distance from 1 is the noise. Peak memory is the largest number of bytes in live tensors (on a GPU, that torch
allocated) in ten steps of a new model; states are the numbers that the optimizer keeps between steps. The last part is
the length of SAM's displacement in the weights over rho: weights in bfloat16 round it.

    python benchmarks/llm.py [--rounds 20] [--layers 4 --width 256 --batch 4 --length 64] [--out FILE]
"""

from __future__ import annotations

import argparse
import datetime
import random
import statistics
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import steppe

VOCABULARY, HEAD, RANK = 8192, 64, 16
PERIOD = 5  # steps, of the methods that are sharpness-aware in some of them
METHODS: dict[str, Callable[[], steppe.Method]] = {
    "AdamW": steppe.Plain,  # torch's own, in a loop without steppe
    "SAM": lambda: steppe.SAM(rho=0.05),
    "Friendly-SAM": lambda: steppe.FriendlySAM(rho=0.05),
    "ESAM, all rows": lambda: steppe.ESAM(rho=0.05, gamma=1.0),
    "SAM every 5 steps": lambda: steppe.Every(PERIOD, steppe.SAM(rho=0.05)),
    "LookSAM, every 5": lambda: steppe.LookSAM(rho=0.05, k=PERIOD),
    "MSAM": lambda: steppe.MomentumSAM(rho=0.05),
}


class LoRA(nn.Module):
    """A frozen linear layer and the product of two small ones, as in Hu et al. 2022."""

    def __init__(self, layer: nn.Linear):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        like = {"device": layer.weight.device, "dtype": torch.float32}
        self.a = nn.Parameter(torch.randn(RANK, layer.in_features, **like) / layer.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(layer.out_features, RANK, **like))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + functional.linear(functional.linear(x, self.a), self.b)


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 6 * width, bias=False), nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(rotated(q, turn), rotated(k, turn), v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        gate, values = self.up(self.norm2(x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * values)


def rotated(x: Tensor, turn: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    cos, sin = turn.cos().to(x.dtype), turn.sin().to(x.dtype)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


class Decoder(nn.Module):
    def __init__(self, layers: int, width: int):
        super().__init__()
        self.embed, self.norm = nn.Embedding(VOCABULARY, width), nn.RMSNorm(width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        place = torch.arange(tokens.shape[1], device=tokens.device)
        turn = place[:, None] / 10000 ** (torch.arange(HEAD // 2, device=tokens.device) * 2 / HEAD)
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, turn)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


class Problem:
    """A decoder, its optimizer with a method, and a step on a fixed batch."""

    def __init__(self, name: str, args: argparse.Namespace, lora: bool, device: torch.device):
        torch.manual_seed(0)
        with torch.device(device):
            self.model = Decoder(args.layers, args.width)
        if lora:
            self.model.requires_grad_(False)
            self.model.to(torch.bfloat16)
            for block in self.model.blocks:
                for part in ("qkv", "out", "up", "down"):
                    setattr(block, part, LoRA(getattr(block, part)))
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        base = torch.optim.AdamW(self.trained, lr=1e-4)
        sharp = name != "AdamW"
        self.opt: Any = steppe.SharpnessAware(base, METHODS[name](), model=self.model) if sharp else base
        self.tokens = torch.randint(VOCABULARY, (args.batch, args.length + 1), device=device)
        self.device = device

    def loss(self) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16):
            logits = self.model(self.tokens[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1).float(), self.tokens[:, 1:].flatten())

    def step(self) -> int:
        passes = 0
        if isinstance(self.opt, torch.optim.AdamW):
            self.loss().backward()
            passes = 1
        else:
            for pass_ in self.opt.passes():
                pass_.backward(self.loss())
                passes += 1
        self.opt.step()
        self.opt.zero_grad()
        return passes


def waited(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


class Live(TorchDispatchMode):
    """Counts the bytes of the tensors that live: torch does so on a GPU only."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.count(out)
        return out

    def count(self, tensors: Any) -> None:
        for t in tree_leaves(tensors):
            if isinstance(t, Tensor) and t.untyped_storage()._cdata not in self.known:
                storage = t.untyped_storage()
                self.known.add(storage._cdata)
                weakref.finalize(storage, self.free, storage._cdata, storage.nbytes())
                self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)

    def free(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


def memory(name: str, args: argparse.Namespace, lora: bool, device: torch.device) -> float:
    """Peak memory of two periods, in MiB: states of the optimizer exist from the second step on."""
    problem = Problem(name, args, lora, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with Live() as live:
        live.count([*problem.model.parameters(), problem.tokens])
        for _ in range(2 * PERIOD):
            problem.step()
    return (torch.cuda.max_memory_allocated() if device.type == "cuda" else live.peak) / 2**20


def states(name: str, args: argparse.Namespace, lora: bool, device: torch.device) -> float:
    """Numbers that the optimizer keeps between steps, over the number of trained weights."""
    problem = Problem(name, args, lora, device)
    problem.step()
    kept = sum(t.numel() for slots in problem.opt.state.values() for t in slots.values() if isinstance(t, Tensor))
    return kept / sum(p.numel() for p in problem.trained)


def table(args: argparse.Namespace, lora: bool, device: torch.device) -> list[str]:
    peaks = {name: memory(name, args, lora, device) for name in METHODS}
    kept = {name: states(name, args, lora, device) for name in METHODS}
    lines = [
        "| method | passes per step | time of a step | peak memory, MiB | states per weight |",
        "|---|---|---|---|---|",
    ]
    plain: list[float] = []
    for name in METHODS:
        pair = [Problem("AdamW", args, lora, device), Problem(name, args, lora, device)]
        seconds, passes = ([], []), 0
        for number in range(PERIOD * (args.rounds + 1)):
            for which in random.sample((0, 1), 2):
                begun = waited(device)
                ran = pair[which].step()
                if number >= PERIOD:  # not those that warm up
                    seconds[which].append(waited(device) - begun)
                    passes += ran * which
        del pair
        plain += seconds[0]
        # means over a period, which has every kind of step once
        beside, own = ([statistics.fmean(s[i : i + PERIOD]) for i in range(0, len(s), PERIOD)] for s in seconds)
        low, middle, high = statistics.quantiles([o / b for o, b in zip(own, beside, strict=True)], n=4)
        lines.append(
            f"| {name} | {passes / len(seconds[1]):.1f} | {middle:.2f} ({low:.2f} to {high:.2f}) | "
            f"{peaks[name]:.0f} | {kept[name]:.1f} |"
        )
    return [*lines, "", f"A step of AdamW takes {1000 * statistics.median(plain):.1f} ms."]


def radius(args: argparse.Namespace, device: torch.device, dtype: torch.dtype) -> float:
    """The length of SAM's displacement in weights of this type, over rho."""
    torch.manual_seed(0)
    with torch.device(device):
        model = Decoder(2, args.width).to(dtype)
    tokens = torch.randint(VOCABULARY, (2, 129), device=device)
    opt = steppe.sam(torch.optim.SGD(model.parameters(), lr=0.0), rho=0.05, model=model)
    before = [p.detach().clone() for p in model.parameters()]
    length = 0.0
    for number, pass_ in enumerate(opt.passes()):
        if number:
            squares = [
                (p - w).detach().double().square().sum() for p, w in zip(model.parameters(), before, strict=True)
            ]
            length = float(torch.stack(squares).sum().sqrt())
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.float32):
            logits = model(tokens[:, :-1])
        pass_.backward(functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten()))
    return length / 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"rounds": 20, "layers": 4, "width": 256, "batch": 4, "length": 64}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with torch.device("meta"):
        model = Decoder(args.layers, args.width)
    weights = sum(p.numel() for p in model.parameters())
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, threads: {torch.get_num_threads()}"
    lines = [
        f"# Fine-tuning a decoder: what methods cost ({datetime.date.today()})", "",
        f"`python benchmarks/llm.py --rounds {args.rounds} --layers {args.layers} --width {args.width} "
        f"--batch {args.batch} --length {args.length}`, {where}, torch {torch.__version__}; "
        f"{weights / 1e6:.1f} million weights, {args.batch} rows of {args.length} tokens.", "",
        "Time is a ratio to AdamW's step: median and quartiles.",
    ]  # fmt: skip
    for lora, title in ((True, f"LoRA of rank {RANK}"), (False, "All weights")):
        lines += ["", f"## {title}", "", *table(args, lora, device)]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        rounded = radius(args, device, torch.bfloat16)
    warned = any("displacement" in str(one.message) or "round" in str(one.message) for one in said)
    exact = radius(args, device, torch.float32)
    lines += [
        "", "## Radius in bfloat16", "",
        f"The displacement of SAM has {100 * rounded:.0f} % of its length in weights of bfloat16"
        f"{' (steppe warns)' if warned else ''}, and {100 * exact:.1f} % in float32 copies under autocast.",
    ]  # fmt: skip
    text = "\n".join(lines) + "\n"
    print(text)
    if args.out is not None:
        args.out.write_text(text)


if __name__ == "__main__":
    main()
