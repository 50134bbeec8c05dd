"""TRL's trainers with `SharpnessAwareTrainer`: metrics and counts are those of the first pass."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers_loops import BATCH, LR, MOMENTUM, arguments, distance

import steppe

os.environ["HF_HUB_OFFLINE"] = "1"  # before the first import of the hub: TRL sends the names of trainers
datasets = pytest.importorskip("datasets")
transformers = pytest.importorskip("transformers")
trl = pytest.importorskip("trl")

from steppe.integrations.transformers import SharpnessAwareTrainer  # noqa: E402

WORDS = ["<pad>", "<eos>", "<unk>", *"abcdefghijk"]
TEXTS = ["a b c d e f g h i", "b c d e f g", "c c c d d d e e e", "k j i h"] * 2
PROMPTS, CHOSEN = ["a b", "b c", "c d", "d e"] * 2, [" c d e", " d e f", " e f", " g h"] * 2
REJECTED = [" k", " i h"] * 4
SAM = steppe.SAM(rho=0.3)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """These libraries warn about each other's future."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special)


def language_model(kind: str = "GPT2LMHeadModel") -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(WORDS), n_positions=32, n_embd=8, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=1, eos_token_id=1, pad_token_id=0, num_labels=1,
    )  # fmt: skip
    return getattr(transformers, kind)(config).double()


class SharpSFT(SharpnessAwareTrainer, trl.SFTTrainer):  # type: ignore[misc, name-defined]
    pass


class SharpDPO(SharpnessAwareTrainer, trl.DPOTrainer):  # type: ignore[misc, name-defined]
    pass


class SharpKTO(SharpnessAwareTrainer, trl.KTOTrainer):  # type: ignore[misc, name-defined]
    pass


class SharpReward(SharpnessAwareTrainer, trl.RewardTrainer):  # type: ignore[misc, name-defined]
    pass


PAIRS = {"prompt": PROMPTS, "chosen": CHOSEN, "rejected": REJECTED}
KINDS: dict[Any, tuple[Any, dict[str, Any]]] = {
    SharpSFT: (trl.SFTConfig, {"text": TEXTS}),
    SharpDPO: (trl.DPOConfig, PAIRS),
    SharpKTO: (trl.KTOConfig, {"prompt": PROMPTS, "completion": CHOSEN, "label": [True, False] * 4}),
    SharpReward: (trl.RewardConfig, PAIRS),
}


def trained(kind: Any, folder: Path, model: Any = None, method: Any = None, sharp: Any = None, **options: Any) -> Any:
    """A trainer of a kind of TRL after three epochs; with `method` that of the class with both parents."""
    config, rows = KINDS[kind]
    usual = arguments(folder, num_train_epochs=3, bf16=False).to_dict()
    args = config(
        **{k: v for k, v in usual.items() if k in USED} | {"output_dir": str(folder), "max_length": 16} | options
    )
    model = model or language_model("GPT2ForSequenceClassification" if kind is SharpReward else "GPT2LMHeadModel")
    more = {"ref_model": language_model()} if kind in (SharpDPO, SharpKTO) else {}
    parent = kind if method is not None else kind.__mro__[2]
    more |= {"method": method} if method is not None else {}
    data = datasets.Dataset.from_dict(rows)
    made = (sharp or parent)(model=model, args=args, train_dataset=data, processing_class=tokenizer(), **more)
    made.train()
    return made


USED = (
    "per_device_train_batch_size", "learning_rate", "use_cpu", "num_train_epochs", "lr_scheduler_type", "max_grad_norm",
    "optim", "optim_args", "report_to", "disable_tqdm", "save_strategy", "logging_steps", "dataloader_pin_memory",
    "train_sampling_strategy", "bf16",
)  # fmt: skip


def logged(made: Any) -> list[dict[str, float]]:
    """What the trainer logged at every step, without times and norms of gradients."""
    return [{k: v for k, v in entry.items() if k != "grad_norm"} for entry in made.state.log_history[:-1]]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("method", [SAM, steppe.SASAM()], ids=["sam", "sa-sam"])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_metrics_are_those_of_the_unperturbed_weights(kind: Any, accumulate: int, method: Any, tmp_path: Path) -> None:
    """At a learning rate of 0 every number that is logged, and all that is counted, is that of TRL's own trainer."""
    options = {"learning_rate": 0.0, "gradient_accumulation_steps": accumulate}
    plain, sharp = (trained(kind, tmp_path, method=m, **options) for m in (None, method))
    assert len(logged(plain)) == 3 * 2 // accumulate
    for expected, seen in zip(logged(plain), logged(sharp), strict=True):
        assert seen == pytest.approx(expected, abs=1e-9)
    assert sharp._total_train_tokens == plain._total_train_tokens > 0


def test_margins_are_zero_before_the_first_step(tmp_path: Path) -> None:
    first = logged(trained(SharpDPO, tmp_path, method=SAM))[0]
    assert first["rewards/margins"] == first["rewards/chosen"] == first["rewards/accuracies"] == 0
    assert first["loss"] == pytest.approx(0.6931, abs=1e-4)


@pytest.mark.parametrize("kind", [SharpSFT, SharpDPO])
def test_weights_equal_a_loop_written_by_hand(kind: Any, tmp_path: Path) -> None:
    """On the losses of TRL's trainer, with momentum; they are in float32."""
    model, expected = language_model(), language_model()
    made = trained(kind, tmp_path, model, method=SAM, max_steps=3, lr_scheduler_type="constant")
    plain = trained(kind, tmp_path, expected, max_steps=1, learning_rate=0.0)
    params = list(expected.parameters())
    base = torch.optim.SGD(params, lr=LR, momentum=MOMENTUM)

    def gradient(batch: Any) -> list[torch.Tensor]:
        items = plain._get_num_items_in_batch([batch], torch.device("cpu"))
        return list(torch.autograd.grad(plain.compute_loss(expected, dict(batch), num_items_in_batch=items), params))

    steps = list(plain.get_train_dataloader())
    for batch in [*steps, *steps][:3]:
        first = gradient(batch)
        norm, before = torch.cat([g.flatten() for g in first]).norm(), [p.detach().clone() for p in params]
        with torch.no_grad():
            for p, g in zip(params, first, strict=True):
                p += 0.3 * g / norm
        second = gradient(batch)
        with torch.no_grad():
            for p, w, g in zip(params, before, second, strict=True):
                p.copy_(w)
                p.grad = g
        base.step()
    assert made.state.global_step == 3
    assert distance(expected, language_model()) > 0.01
    assert distance(expected, model) < 1e-5


def test_the_block_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text()
    code = page.partition("## TRL\n")[2].partition("```python\n")[2].partition("```")[0]
    texts, pairs = (datasets.Dataset.from_dict(rows) for rows in ({"text": TEXTS}, PAIRS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    for name in ("SFTConfig", "DPOConfig"):
        small = partial(getattr(trl, name), use_cpu=True, bf16=False, report_to=[], max_steps=2, logging_steps=1)
        monkeypatch.setattr(trl, name, small)
    model, start = language_model(), language_model()
    names: dict[str, Any] = {"model": model, "tokenizer": tokenizer(), "texts": texts, "pairs": pairs}
    exec(code, names)
    assert distance(start, model) > 0
    assert logged(names["sft"])[-1]["num_tokens"] == 2 * 64
    assert logged(names["dpo"])[0]["rewards/margins"] == 0


def test_what_a_subclass_counts_in_its_attributes_is_that_of_the_first_pass(tmp_path: Path) -> None:
    """Numbers, lists, dictionaries, tensors in place, and metrics of torchmetrics."""
    torchmetrics = pytest.importorskip("torchmetrics")

    class Counting(SharpSFT):
        calls, seen, total = 0, [0.0], torch.zeros(())

        def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            loss = super().compute_loss(model, inputs, *args, **kwargs)
            self.calls += 1
            self.losses.append(float(loss))
            self.rows["all"] = self.rows.get("all", 0) + len(inputs["input_ids"])
            self.counted += 1
            self.mean.update(loss.detach())
            self.kept = transformers.modeling_outputs.CausalLMOutput(loss=loss)  # refuses to be changed
            return loss

        def train(self, *args: Any, **kwargs: Any) -> Any:
            self.losses: list[float] = []
            self.rows: dict[str, int] = {}
            self.counted, self.mean = torch.zeros(()), torchmetrics.MeanMetric()
            return super().train(*args, **kwargs)

    made = trained(SharpSFT, tmp_path, method=SAM, sharp=Counting, learning_rate=0.0)
    assert (made.calls, int(made.counted), made.rows) == (6, 6, {"all": 6 * BATCH})
    assert made.losses[:2] * 3 == pytest.approx(made.losses)
    assert float(made.mean.compute()) == pytest.approx(sum(made.losses) / 6)


def test_a_trainer_that_generates_its_batches_is_refused(tmp_path: Path) -> None:
    class SharpGRPO(SharpnessAwareTrainer, trl.GRPOTrainer):  # type: ignore[misc, name-defined]
        pass

    args = trl.GRPOConfig(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to=[], num_generations=2, max_completion_length=4,
        per_device_train_batch_size=2,
    )  # fmt: skip
    made = SharpGRPO(
        model=language_model(), args=args, train_dataset=datasets.Dataset.from_dict({"prompt": PROMPTS}),
        processing_class=tokenizer(), reward_funcs=lambda completions, **_: [1.0] * len(completions), method=SAM,
    )  # fmt: skip
    with pytest.raises(RuntimeError, match="SharpGRPO generates its batch in training_step"):
        made.train()
