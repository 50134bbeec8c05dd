"""steppe's trace is at least as accurate as Hutchinson, Hutch++ and XTrace at equal numbers of products, 30 to 300.

Bars, for every problem and budget: the error is at most that of the best peer, within two standard errors of the
ratio, and the 95 % interval covers the trace in 93 to 97 % of the seeds, within two standard errors of that share.

Twelve problems: a conv net and an MLP on digits, each with Hessian and Gauss-Newton matrix, plain and rescaled by the
weights; and the Hessians of a BERT, a GPT-2, a ViT and a BERT with LoRA adapters, of two layers. All are trained, and
so small that the matrix is computed once and a product is a row of it. The matrix also gives the exact variance of
signs on the complement of a space, so errors of Hutchinson (exact), Hutch++ (n sketches) and steppe (n Krylov spaces)
have almost no noise; XTrace (Epperly, Tropp and Webber 2024, with normalised vectors) is a root mean square over
seeds: 50, doubled up to 400 while its error is within four standard errors of steppe's. Coverage is that of steppe's
own intervals, over `--seeds` seeds of 30 products and a tenth of them beyond, where all problems are also counted
together.

With `--stopping`: what it does to a trace that its draws decide how many they are. On an indefinite Hessian of 134
weights, bias, error and coverage of searches that stop at a relative error, and of fixed numbers of products. Bars:
fixed numbers have no bias, within three standard errors; searches have one below a quarter of their error; both cover
93 to 97 %, within two standard errors.

With `--timed`: CPU time until the error (root mean square over 12 seeds) is 2 %, at the smallest of some numbers of
products with which it is: `Sweep` and XTrace on the same operator, of which the second multiplies with many
vectors at once and the Lanczos process of the first with one after the other.

    python benchmarks/traces.py [--seeds 400] [--problem conv] [--out FILE]
    python benchmarks/traces.py --stopping    # 2 minutes
    python benchmarks/traces.py --timed       # 10 minutes
    python benchmarks/traces.py --xtrace      # whether the intervals of XTrace cover, on closed forms
    python benchmarks/traces.py --batched     # time of products at once and one by one, for the same networks
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import statistics
import sys
import threading
import time
import warnings
from collections.abc import Callable
from math import sqrt
from pathlib import Path
from types import SimpleNamespace

import torch
from measures import conv_net, digits, mlp, train
from torch import Tensor, nn
from torch.nn import functional

from steppe import Objective
from steppe.core.basis import flat, unflat
from steppe.core.vector import Space, Vector
from steppe.measures import Curvature, Dense, Sweep, gauss_newton, hessian
from steppe.measures.curvature.forms import Form
from steppe.measures.estimate import Estimate, last

BUDGETS = (30, 60, 100, 200, 300)
MANY = 30  # products up to which all seeds run
ROWS = 32
SKETCHES = 5
XTRACES = 50, 400  # seeds of XTrace: at least and at most
CLEAR = 4  # standard errors between XTrace and steppe that end its seeds
TOGETHER = 40  # seeds whose products are one matrix product
VOCABULARY, CLASSES = 24, 4
F64 = torch.float64
COVERED: dict[int, list[bool]] = {k: [] for k in BUDGETS}  # whether intervals cover, over all problems


# -- networks ---------------------------------------------------------------------------------------------------------


def on_digits(make: Callable[[int], nn.Module], width: int, epochs: int, side: int | None) -> Objective:
    model, (x, y) = make(width), digits(side)
    train(model, x[:1400], y[:1400], epochs)
    return Objective(model.eval().double(), functional.cross_entropy, (x[:ROWS].double(), y[:ROWS]))


def sentences(length: int) -> Tensor:
    """Token ids of which the next one is one of three."""
    ids = [torch.randint(VOCABULARY, (512, 1))]
    while len(ids) < length:
        ids.append((3 * ids[-1] + torch.randint(1, 4, (512, 1))) % VOCABULARY)
    return torch.cat(ids, 1)


def fitted(model: nn.Module, forward: Callable[..., tuple[Tensor, Tensor]], data: tuple[Tensor, ...], steps: int = 300):
    """The objective of a model after some steps of Adam on its parameters that require gradients."""
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 0.01)
    for _ in range(steps):
        rows = torch.randint(len(data[0]), (64,))
        optimizer.zero_grad()
        functional.cross_entropy(*forward(model, tuple(t[rows] for t in data))).backward()
        optimizer.step()
    optimizer.zero_grad()
    batch = tuple(t[:ROWS].double() if t.is_floating_point() else t[:ROWS] for t in data)
    return Objective(model.eval().double(), functional.cross_entropy, [batch], forward=forward)


def bert_model(hidden: int) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(
        BertConfig(
            vocab_size=VOCABULARY, hidden_size=hidden, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=hidden, max_position_embeddings=12, num_labels=CLASSES,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


def classified(model: nn.Module, batch: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    return model(input_ids=batch[0]).logits, batch[1]


def bert() -> Objective:
    ids = sentences(10)
    return fitted(bert_model(8), classified, (ids, (ids[:, 0] + ids[:, 5]) % CLASSES))


def lora() -> Objective:
    """Adapters of rank 2 on a network that was trained on other labels."""
    from peft import LoraConfig, get_peft_model

    ids, model = sentences(10), bert_model(24)
    fitted(model, classified, (ids, (ids[:, 0] + ids[:, 5]) % CLASSES), steps=60)
    adapters = LoraConfig(r=2, lora_alpha=4, target_modules=["query", "value", "dense"], lora_dropout=0.0)
    return fitted(get_peft_model(model.float(), adapters), classified, (ids, (ids[:, 0] + ids[:, 4]) % CLASSES))


def gpt2() -> Objective:
    from transformers import GPT2Config, GPT2LMHeadModel

    def next_token(model: nn.Module, batch: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        logits = model(input_ids=batch[0][:, :-1]).logits
        return logits.transpose(1, 2), batch[0][:, 1:]

    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=12, n_embd=8, n_inner=16, n_layer=2, n_head=2, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return fitted(GPT2LMHeadModel(config), next_token, (sentences(12),))


def vit() -> Objective:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=8, patch_size=4, num_channels=1, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=16, num_labels=10, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    x, y = digits(None)
    return fitted(ViTForImageClassification(config), lambda m, b: (m(pixel_values=b[0]).logits, b[1]),
                  (x[:1400].view(-1, 1, 8, 8), y[:1400]))  # fmt: skip


NETWORKS: dict[str, Callable[[], Objective]] = {
    "mlp": lambda: on_digits(mlp, 12, 30, None),
    "conv": lambda: on_digits(conv_net, 2, 4, 8),
    "bert": bert,
    "gpt2": gpt2,
    "vit": vit,
    "lora": lora,
}


def matrices(name: str) -> dict[str, tuple[Tensor, Tensor]]:
    """The matrices of a network with the gradient that Lanczos starts from; all four of the first two networks."""
    torch.manual_seed(0)
    objective = NETWORKS[name]()
    forms = {"Hessian": hessian, "Gauss-Newton": gauss_newton} if name in ("mlp", "conv") else {"Hessian": hessian}
    w = flat(objective.weights).abs()
    results = {}
    for title, form in forms.items():
        operator = Curvature(objective, form)
        matrix, slope = Dense(operator).matrix, flat(operator.gradient())
        results[f"{name}, {title}"] = (matrix, slope)
        if len(forms) > 1:
            results[f"{name}, {title}, rescaled"] = (matrix * torch.outer(w, w), slope * w)
    return results


# -- estimators -------------------------------------------------------------------------------------------------------


class Lockstep:
    """A matrix as the operator of several threads, whose products are one matrix product."""

    def __init__(self, matrix: Tensor, slope: Tensor, threads: int):
        self.matrix, self.slope = matrix, slope
        self.space = Space([torch.zeros(len(matrix), dtype=F64)])
        self.dimension = len(matrix)
        self._inputs: dict[int, Tensor] = {}
        self._barrier = threading.Barrier(threads, self._multiply)

    def _multiply(self) -> None:
        keys = list(self._inputs)
        images = (self.matrix @ torch.cat([self._inputs[key] for key in keys], 1)).split(
            [self._inputs[key].shape[1] for key in keys], 1
        )
        self._images = dict(zip(keys, images, strict=True))

    def gradient(self) -> Vector:
        return unflat(self.space, self.slope.clone())

    def product(self, v: Vector) -> Vector:
        return self.products([v])[0]

    def products(self, vectors: list[Vector]) -> list[Vector]:
        me = threading.get_ident()
        self._inputs[me] = torch.stack([flat(v) for v in vectors], 1)
        self._barrier.wait()
        images = self._images[me]
        return [unflat(self.space, images[:, i].contiguous()) for i in range(len(vectors))]


def swept(matrix: Tensor, slope: Tensor, seeds: range, most: int) -> list[tuple[dict[int, Estimate], Sweep]]:
    """The estimates of steppe at all budgets up to `most`; a sweep continues where the smaller budget ended."""
    results: dict[int, tuple[dict[int, Estimate], Sweep]] = {}
    operator = Lockstep(matrix, slope, len(seeds))

    def run(seed: int) -> None:
        sweep = Sweep(operator, seed)
        estimates = {k: last(sweep.trace(0.0, most=k)) for k in BUDGETS if k <= most}
        results[seed] = (estimates, sweep)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in seeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[seed] for seed in seeds]


def variance_of_signs(matrix: Tensor, q: Tensor | None = None, *, centred: bool = False) -> float:
    """Of z'PAPz over random signs z, P the projection onto the complement of the columns of q.

    `centred` is the variance of z'(PAP - mP)z, with m the mean eigenvalue of PAP on the complement.
    """
    if q is not None:
        image = matrix @ q
        half = image - q @ (q.mT @ image) / 2
        matrix = matrix - half @ q.mT - q @ half.mT
        if centred:
            mean = matrix.trace() / (len(q) - q.shape[1])
            matrix = matrix - mean * (torch.eye(len(q), dtype=F64) - q @ q.mT)
    return 2 * float(matrix.square().sum() - matrix.diagonal().square().sum())


def sketch(matrix: Tensor | Curvature, columns: int, generator: torch.Generator) -> Tensor:
    """The orthonormal columns of Hutch++: products with random signs."""
    signs = torch.randint(2, (matrix.shape[0], columns), generator=generator).to(F64) * 2 - 1
    return torch.linalg.qr(matrix @ signs).Q


def xtrace(matrix: Tensor | Curvature, products: int, generator: torch.Generator) -> float:
    """XTrace with vectors of length sqrt(d): every vector probes the complement of the others' images."""
    return float(xtrace_parts(matrix, products, generator).mean())


def xtrace_parts(matrix: Tensor | Curvature, products: int, generator: torch.Generator) -> Tensor:
    """The estimates of which XTrace is the mean: one per vector, each from the images of the others."""
    n, d = products // 2, matrix.shape[0]
    w = torch.randn(d, n, generator=generator, dtype=F64)
    w *= sqrt(d) / w.norm(dim=0)
    q, r = torch.linalg.qr(matrix @ w)
    image = matrix @ q
    inside, s = q.mT @ image, torch.linalg.inv(r).mT
    s /= s.norm(dim=0)  # q s_i is orthogonal to the images of the others
    a = q.mT @ w
    sa = (s * a).sum(0)
    x = a - s * sa
    scale = (d - n + 1) / (d - a.square().sum(0) + sa.square())
    outside = (x * (inside @ x)).sum(0) - ((image.mT @ w) * x).sum(0) + sa * (r * s).sum(0)
    return inside.trace() - (s * (inside @ s)).sum(0) + scale * outside


# -- the page ---------------------------------------------------------------------------------------------------------


def root_mean(variances: list[float]) -> tuple[float, float]:
    """The root of the mean of variances, and its standard error."""
    mean = statistics.fmean(variances)
    error = statistics.stdev(variances) / sqrt(len(variances)) if len(variances) > 1 else 0.0
    return sqrt(mean), error / (2 * sqrt(mean))


def xtrace_error(values: Tensor, products: int, generator: torch.Generator, most: int, bar: float):
    """The root mean squared error of XTrace with its standard error, from more seeds if it is near a bar.

    Its vectors have no preferred directions, so a diagonal matrix of the eigenvalues gives the same errors, faster.
    """
    matrix, squares = torch.diag(values).to_sparse(), []
    while True:
        seeds = min(max(len(squares), XTRACES[0]), most - len(squares))
        squares += [(xtrace(matrix, products, generator) - float(values.sum())) ** 2 for _ in range(seeds)]
        error, doubt = root_mean(squares)
        if len(squares) == most or abs(error - bar) > CLEAR * doubt:
            return error, doubt


def errors_of(matrix: Tensor, sweeps: list[Sweep], xtraces: int) -> dict[str, dict[int, tuple[float, float]]]:
    """The root mean squared error of every estimator at every budget, with its standard error."""
    generator, values = torch.Generator().manual_seed(0), torch.linalg.eigvalsh(matrix)
    bases = [torch.stack([flat(s.lanczos.basis.combined(e)) for e in torch.eye(s.lanczos.steps, dtype=F64)], 1)
             for s in sweeps]  # fmt: skip
    plain = variance_of_signs(matrix)
    errors: dict[str, dict[int, tuple[float, float]]] = {"steppe": {}, "Hutchinson": {}, "Hutch++": {}, "XTrace": {}}
    for k in BUDGETS:
        probes, third = k // 3, k // 3
        ours = [variance_of_signs(matrix, q[:, : 2 * probes], centred=True) / probes for q in bases]
        errors["steppe"][k] = root_mean(ours)
        errors["Hutchinson"][k] = (sqrt(plain / k), 0.0)
        drawn = [variance_of_signs(matrix, sketch(matrix, third, generator)) for _ in sweeps]
        errors["Hutch++"][k] = root_mean([v / (k - 2 * third) for v in drawn])
        errors["XTrace"][k] = xtrace_error(values, k, generator, xtraces, errors["steppe"][k][0])
    return errors


def report(name: str, matrix: Tensor, slope: Tensor, seeds: int, verdicts: list[str]) -> str:
    truth, few = float(matrix.trace()), max(seeds // 10, 2)
    long = [r for i in range(0, few, TOGETHER) for r in swept(matrix, slope, range(i, min(i + TOGETHER, few)), 300)]
    errors = errors_of(matrix, [sweep for _, sweep in long[:SKETCHES]], min(XTRACES[1], seeds))
    found = [estimates for estimates, _ in long]
    del long
    for i in range(few, seeds, TOGETHER):
        found += [e for e, _ in swept(matrix, slope, range(i, min(i + TOGETHER, seeds)), MANY)]
    heads = ["products", *(f"{peer}, error in %" for peer in errors), "best peer / steppe", "n", "z", "covered, %"]
    size = f"{len(matrix):,} parameters, trace {truth:.4g}"
    lines = [f"### {name}: {size}", "", f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for k in BUDGETS:
        at = [estimates[k] for estimates in found if k in estimates]
        z = [(e.value - truth) / e.stderr for e in at]
        inside = [e.interval()[0] <= truth <= e.interval()[1] for e in at]
        COVERED[k] += inside
        covered = statistics.fmean(inside)
        spread = sqrt(0.95 * 0.05 / len(at))
        best = min((errors[peer][k] for peer in errors if peer != "steppe"), key=lambda error: error[0])
        ours = errors["steppe"][k]
        ratio = best[0] / ours[0]
        doubt = ratio * sqrt((best[1] / best[0]) ** 2 + (ours[1] / ours[0]) ** 2)
        shown = [f"{100 * e / abs(truth):.3g} ± {100 * s / abs(truth):.1g}" for e, s in (errors[p][k] for p in errors)]
        lines.append(
            f"| {k} | {' | '.join(shown)} | {ratio:.2f} ± {doubt:.2f} | {len(at)} | {statistics.stdev(z):.2f} "
            f"| {100 * covered:.1f} ± {100 * spread:.1f} |"
        )
        accurate, honest = ratio + 2 * doubt >= 1, 0.93 - 2 * spread <= covered <= 0.97 + 2 * spread
        verdicts.append(f"| {name} | {k} | {ratio:.2f} | {'met' if accurate else 'MISSED'} | {100 * covered:.1f} | "
                        f"{'met' if honest else 'MISSED'} |")  # fmt: skip
    return "\n".join(lines) + "\n"


def pooled(k: int) -> str:
    """The coverage at one budget over all problems."""
    share, n = statistics.fmean(COVERED[k]), len(COVERED[k])
    spread = sqrt(0.95 * 0.05 / n)
    met = "met" if 0.93 - 2 * spread <= share <= 0.97 + 2 * spread else "MISSED"
    return f"| all, n = {n} | {k} | | | {100 * share:.1f} ± {100 * spread:.1f} | {met} |"


def batched(name: str, times: int = 5) -> str:
    """Products of 8 vectors at once over the time of one by one, and their largest relative difference."""
    torch.manual_seed(0)
    objective = NETWORKS[name]()
    operators = {way: Curvature(objective) for way in ("at once", "one by one")}
    operators["one by one"]._batch_products._vectorises = False
    operators["at once"]._batch_products._vectorises = True
    vectors = [objective.draw(0, i).signs() for i in range(8)]
    spent: dict[str, list[float]] = {way: [] for way in operators}
    images = {}
    for _ in range(times + 1):
        for way, operator in operators.items():
            start = time.process_time()
            images[way] = operator.products(vectors)
            spent[way].append(time.process_time() - start)
    ratios = [one / many for one, many in zip(spent["one by one"][1:], spent["at once"][1:], strict=True)]
    pairs = zip(images["at once"], images["one by one"], strict=True)
    difference = max(float((a - b).norm() / b.norm()) for a, b in pairs)
    kept = "yes" if operators["at once"]._batch_products._vectorises else "no, falls back"
    middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
    return f"| {name} | {middle:.2f} | {low:.2f} - {high:.2f} | {difference:.0e} | {kept} |"


BUDGETS_TIMED = (12, 18, 24, 36, 48, 60, 72, 90, 108, 126, 150, 180, 210, 240)
TIMED: dict[str, tuple[Callable[[], Objective], Form]] = {
    "mlp, 3 k": (lambda: on_digits(mlp, 32, 30, None), hessian),
    "mlp, 26 k": (lambda: on_digits(mlp, 128, 30, None), hessian),
    "mlp, 26 k, Gauss-Newton": (lambda: on_digits(mlp, 128, 30, None), gauss_newton),
    "conv, 1 k": (NETWORKS["conv"], hessian),
}


def timed(name: str, seeds: int = 12, rounds: int = 9) -> list[str]:
    """Lines of the table: CPU time at the same error."""
    torch.manual_seed(0)
    make, form = TIMED[name]
    operator = Curvature(make(), form)
    truth = last(Sweep(operator, 999).trace(1e-3, 3000)).value

    def sweep(operator: Curvature, products: int, generator: torch.Generator) -> float:
        return last(Sweep(operator, generator.initial_seed()).trace(0.0, products)).value

    tools, needs = {"Sweep": sweep, "XTrace": xtrace}, {}
    for tool, estimate in tools.items():
        for k in BUDGETS_TIMED:
            values = [estimate(operator, k, torch.Generator().manual_seed(seed)) for seed in range(seeds)]
            error = sqrt(statistics.fmean((v / truth - 1) ** 2 for v in values))
            if error <= 0.02:
                needs[tool] = k, error
                break
    spent: dict[str, list[float]] = {tool: [] for tool in needs}
    for i in range(rounds):
        for tool, (k, _) in needs.items():
            start = time.process_time()
            tools[tool](operator, k, torch.Generator().manual_seed(i))
            spent[tool].append(time.process_time() - start)
    lines = []
    for tool, (k, error) in needs.items():
        ratios = sorted(a / b for a, b in zip(spent[tool], spent["Sweep"], strict=True))
        seconds = f"{1e3 * statistics.median(spent[tool]):.1f}"
        ratio = f"{statistics.median(ratios):.2f} | {ratios[1]:.2f} - {ratios[-2]:.2f}"
        lines.append(f"| {name} | {tool} | {k} | {100 * error:.2f} | {seconds} | {ratio} |")
    return lines


def indefinite() -> Objective:
    """Away from any minimum: 134 weights, and a trace that is small beside the sum of absolute eigenvalues."""
    layers = nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 4), nn.Tanh(), nn.Linear(4, 4)
    model = nn.Sequential(*layers).double()
    return Objective(model, functional.cross_entropy, (torch.randn(32, 6, dtype=F64), torch.randint(4, (32,))))


def stopped(operator: Lockstep, exact: float, rtol: float, most: int, seeds: int) -> str:
    """Of a search that stops at a relative error, or of a fixed number of products where rtol is 0."""
    found, products = [], []
    for seed in range(seeds):
        sweep = Sweep(operator, seed)
        found.append(last(sweep.trace(rtol, most)))
        products.append(sweep.products)
    errors = torch.tensor([e.value for e in found], dtype=F64) / exact - 1
    bias, doubt = 100 * float(errors.mean()), 100 * float(errors.std()) / sqrt(seeds)
    error, kind = 100 * float(errors.square().mean().sqrt()), found[0].kind
    covered = statistics.fmean(low <= exact <= high for low, high in (e.interval() for e in found))
    spread = sqrt(0.95 * 0.05 / seeds)
    small = abs(bias) <= 3 * doubt + (0.25 * error if rtol else 0.0)
    met = "met" if small and 0.93 - 2 * spread <= covered <= 0.97 + 2 * spread else "MISSED"
    search = f"stops at {100 * rtol:g} %" if rtol else f"{most} products"
    return (
        f"| {search} | {kind} | {seeds} | {statistics.fmean(products):.1f} | {bias:+.2f} ± {doubt:.2f} | {error:.2f} | "
        f"{100 * covered:.1f} ± {100 * spread:.1f} | {met} |"
    )


def stopping(times: float = 1.0) -> str:
    """The page about stopping: `times` as many seeds as usual."""
    torch.manual_seed(0)
    operator = Curvature(indefinite())
    matrix, slope = Dense(operator).matrix, flat(operator.gradient())
    values, exact = torch.linalg.eigvalsh(matrix), float(matrix.trace())
    alone = Lockstep(matrix, slope, 1)
    plans = [(0.3, 200, 3000), (0.1, 200, 2000), (0.02, 200, 400), (0.0, 30, 3000), (0.0, 60, 2000)]
    rows = [stopped(alone, exact, rtol, most, max(2, int(times * seeds))) for rtol, most, seeds in plans]
    head = (
        "| search | kind | n | products | bias, % | error, % | covered, % | bars |\n|---|---|---|---|---|---|---|---|"
    )
    return (
        f"{len(matrix)} weights, eigenvalues {values[0]:.3g} to {values[-1]:.3g}, trace {exact:.4g}; bias, error (root "
        "mean square) and coverage of the 95 % interval over n seeds, in per cent of the trace.\n"
        f"Repeat with `python benchmarks/traces.py --stopping`.\n\n{head}\n" + "\n".join(rows) + "\n"
    )


# -- XTrace's own error -----------------------------------------------------------------------------------------------

LEVELS = torch.arange(1, 301, dtype=F64)
SPECTRA = {
    "1 to 3, equally spaced": torch.linspace(1, 3, 300, dtype=F64),
    "1 / i": 1 / LEVELS,
    "1 / i^2": 1 / LEVELS.square(),
    "0.97^i": 0.97**LEVELS,
    "0.7^i": 0.7**LEVELS + 1e-8,
    "1 / i^0.7, every third negative": torch.where(LEVELS % 3 == 0, -0.5, 1.0) / LEVELS**0.7,
    "30 of 1, others 0.001": torch.where(LEVELS <= 30, 1.0, 1e-3).double(),
}
GROUPS = 6  # independent XTraces in one estimate


def xtrace_coverage(seeds: int = 1000) -> str:
    """How often Student's interval of XTrace covers: from its own parts, and from groups that share no vectors."""
    from scipy.stats import t as student

    head = "| spectrum of 300 eigenvalues | products | covered, % | inflation for 95 % | error of one / of groups |"
    lines = [head, "|---" * 5 + "|"]
    generator = torch.Generator().manual_seed(0)
    for name, values in SPECTRA.items():
        matrix, truth = torch.diag(values).to_sparse(), float(values.sum())
        for products in (30, 60, 96):
            each = [xtrace_parts(matrix, products, generator) for _ in range(seeds)]
            errors = torch.stack([parts.mean() for parts in each]) - truth
            stated = torch.stack([parts.std() for parts in each]) / sqrt(products // 2)
            widths = errors.abs() / (stated * student.ppf(0.975, products // 2 - 1))
            groups = [
                statistics.fmean(xtrace(matrix, products // GROUPS, generator) for _ in range(GROUPS)) - truth
                for _ in range(seeds // 10)
            ]
            one, several = float(errors.square().mean().sqrt()), root_mean([e**2 for e in groups])[0]
            lines.append(
                f"| {name} | {products} | {100 * float((widths <= 1).double().mean()):.1f} "
                f"| {float(widths.quantile(0.95)):.2f} | {one / truth:.1e} / {several / truth:.1e} |"
            )
    return "\n".join(lines) + "\n"


def cpu() -> str:
    """The name of the processor, as the system tells it."""
    try:
        names = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                 if line.startswith("model name")]  # fmt: skip
    except OSError:
        names = []
    return names[0] if names else f"{platform.machine()} CPU"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=400)
    parser.add_argument("--problem", choices=NETWORKS, action="append")
    parser.add_argument("--batched", action="store_true")
    parser.add_argument("--stopping", action="store_true")
    parser.add_argument("--timed", action="store_true")
    parser.add_argument("--xtrace", action="store_true")
    parser.add_argument("--out", type=Path)
    chosen = SimpleNamespace(**vars(parser.parse_args(arguments)))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    names = chosen.problem or list(NETWORKS)
    machine = (
        f"{datetime.date.today()}, {cpu()}, one thread of a {os.cpu_count()}-core machine with other "
        f"work, torch {torch.__version__}, float64."
    )
    if chosen.timed:
        head = "| problem | estimator | products | error, % | CPU time, ms | over Sweep's | 2nd lowest - 2nd highest |"
        text = (
            f"# Traces at equal error, timed\n\n{machine} n = 9 interleaved rounds, medians.\n"
            f"Repeat with `python benchmarks/traces.py --timed`.\n\n{head}\n" + "|---" * 7 + "|\n"
        )
        lines = []
        for name in TIMED:
            lines += timed(name)
            print(*lines[-2:], sep="\n", file=sys.stderr)
        parts, verdicts = [text + "\n".join(lines) + "\n"], []
    elif chosen.xtrace:
        text = (
            f"# The error that XTrace states\n\n{machine} n = 1000 seeds, 100 of groups. Student's interval of the "
            f"parts of one XTrace, with as many degrees of freedom as vectors but one; the factor by which it would "
            f"have to be wider; and the relative error beside that of {GROUPS} independent XTraces of as many "
            f"products in all, whose interval would be sound.\nRepeat with `python benchmarks/traces.py --xtrace`.\n"
        )
        parts, verdicts = [text, xtrace_coverage()], []
    elif chosen.stopping:
        parts, verdicts = [f"# Traces that stop at an error\n\n{machine}\n{stopping(chosen.seeds / 400)}"], []
    elif chosen.batched:
        head = "| network | one by one / at once | range | difference | batched |\n|---|---|---|---|---|"
        text = f"# Products of 8 vectors at once\n\n{machine} CPU time.\n\n{head}\n"
        parts, verdicts = [text + "\n".join(batched(name) for name in names) + "\n"], []
    else:
        verdicts = []
        parts = [
            f"# Traces at equal numbers of products\n\n{machine} n is the number of seeds of steppe's intervals; "
            f"{SKETCHES} sketches and Krylov spaces, {XTRACES[0]} to {XTRACES[1]} seeds of XTrace; errors are root "
            f"mean squares ± standard error, z is the standard deviation of error / standard error.\nRepeat with "
            f"`python benchmarks/traces.py --seeds {chosen.seeds}`.\n"
        ]
        for name in names:
            for title, (matrix, slope) in matrices(name).items():
                parts.append(report(title, matrix, slope, chosen.seeds, verdicts))
                print(parts[-1], flush=True)
        verdicts += [pooled(k) for k in BUDGETS]
        head = (
            "| problem | products | best peer / steppe | accuracy | covered, % | interval |\n|---|---|---|---|---|---|"
        )
        parts.append(f"### Bars\n\n{head}\n" + "\n".join(verdicts) + "\n")
    text = "\n".join(parts)
    print(text)
    if chosen.out:
        chosen.out.write_text(text)


if __name__ == "__main__":
    main()
