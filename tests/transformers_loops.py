"""A Trainer of Transformers, small models and data for it, and a hand-written SAM loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

RHO, LR, MOMENTUM, BATCH = 0.3, 0.2, 0.9, 4
Batch = dict[str, Tensor]


class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Sequences of tokens, some of whose labels are ignored, or images."""

    def __init__(self, n: int, images: bool = False) -> None:
        g = torch.Generator().manual_seed(0)
        if images:
            self.name, self.inputs = "pixel_values", torch.randn(n, 1, 8, 8, generator=g, dtype=torch.float64)
            self.labels = torch.randint(3, (n,), generator=g)
        else:
            self.name, self.inputs = "input_ids", torch.randint(3, 30, (n, 6), generator=g)
            self.labels = torch.where(torch.rand(self.inputs.shape, generator=g) < 0.3, -100, self.inputs)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {self.name: self.inputs[i], "labels": self.labels[i]}

    def batches(self) -> list[Batch]:
        return [
            {self.name: self.inputs[i : i + BATCH], "labels": self.labels[i : i + BATCH]}
            for i in range(0, len(self), BATCH)
        ]


def bert(dropout: float = 0.0, layers: int = 1) -> nn.Module:
    import transformers  # takes seconds

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=8,
        num_labels=30, max_position_embeddings=8, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    return transformers.BertForTokenClassification(config).double()  # type: ignore[no-any-return]


def gpt2() -> nn.Module:
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=30, n_positions=8, n_embd=8, n_layer=1, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).double()
    model.loss_type = "ForCausalLM"  # or Trainer counts the first labels too
    return model  # type: ignore[no-any-return]


def vit() -> nn.Module:
    import transformers

    torch.manual_seed(0)
    config = transformers.ViTConfig(
        image_size=8, patch_size=4, num_channels=1, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config).double()  # type: ignore[no-any-return]


def lora() -> nn.Module:
    import peft

    config = peft.LoraConfig(r=2, target_modules=["query", "value"], init_lora_weights=False)  # not zero
    return peft.get_peft_model(bert(), config).double()  # type: ignore[no-any-return]


def summed(logits: Tensor, labels: Tensor, causal: bool) -> Tensor:
    """The sum of the losses of the labels that count, in float64: the losses of Transformers are in float32."""
    if causal:
        logits, labels = logits[:, :-1], labels[:, 1:]
    return nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="sum")


def token_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None, causal: bool = False) -> Tensor:
    return summed(outputs.logits, labels, causal) / num_items_in_batch


def arguments(folder: Path, **options: Any) -> Any:
    fixed: dict[str, Any] = {
        "output_dir": str(folder), "per_device_train_batch_size": BATCH, "learning_rate": LR, "use_cpu": True,
        "num_train_epochs": 2, "lr_scheduler_type": "linear", "max_grad_norm": 0.0, "optim": "sgd",
        "optim_args": f"momentum={MOMENTUM}", "report_to": [], "disable_tqdm": True, "save_strategy": "no",
        "logging_steps": 1, "dataloader_pin_memory": False, "train_sampling_strategy": "sequential",
    }  # fmt: skip
    from transformers import TrainingArguments

    return TrainingArguments(**(fixed | options))


def gradient(model: nn.Module, batches: list[Batch], causal: bool) -> tuple[float, list[Tensor]]:
    """Of the mean over all labels of the micro-batches that count."""
    total: Any = 0.0
    count = 0
    for batch in batches:
        labels = batch["labels"]
        inputs = {name: x for name, x in batch.items() if name != "labels"}
        total = total + summed(model(**inputs).logits, labels, causal)
        count += int((labels[:, 1:] if causal else labels).ne(-100).sum())
    loss = total / count
    return loss.item(), list(torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad]))


def by_hand(
    model: nn.Module, data: Rows, accumulate: int, clip: float, epochs: int = 2, causal: bool = False, base: Any = None
) -> list[float]:
    """SAM as in Foret et al. 2021, on micro-batches, with the linear schedule; returns the unperturbed losses."""
    params = [p for p in model.parameters() if p.requires_grad]
    base = torch.optim.SGD(params, lr=LR, momentum=MOMENTUM) if base is None else base
    micro = data.batches()
    steps = [micro[i : i + accumulate] for i in range(0, len(micro), accumulate)] * epochs
    seen = []
    for number, batches in enumerate(steps):
        base.param_groups[0]["lr"] = LR * (1 - number / len(steps))
        loss, grads = gradient(model, batches, causal)
        seen.append(loss)
        norm = torch.cat([g.flatten() for g in grads]).norm()
        before = [p.detach().clone() for p in params]
        with torch.no_grad():
            for p, g in zip(params, grads, strict=True):
                p += RHO * g / norm
        _, grads = gradient(model, batches, causal)
        with torch.no_grad():
            for p, w, g in zip(params, before, grads, strict=True):
                p.copy_(w)
                p.grad = g
        if clip:
            nn.utils.clip_grad_norm_(params, clip)
        base.step()
    return seen


def distance(a: nn.Module, b: nn.Module) -> float:
    return max(float((p - q).detach().abs().max()) for p, q in zip(a.parameters(), b.parameters(), strict=True))
