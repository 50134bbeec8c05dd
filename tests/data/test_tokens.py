"""Token ids, masks and labels: models that compute their own loss, labels that losses ignore, pools of such models."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import steppe
from steppe.cli import main
from steppe.measures.objective import objective
from steppe.studies.cell import Disagreement
from steppe.studies.engines import Serial
from steppe.studies.plan import Study
from steppe.studies.run import look, run

IGNORED = -100


class LanguageModel(nn.Module):
    """A model with the calling convention of Transformers: labels of -100 are ignored, causal ones are shifted."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.causal, self.embed, self.head = causal, nn.Embedding(7, 3), nn.Linear(3, 7)
        self.double()

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> Any:
        x = self.embed(input_ids) * attention_mask[..., None]
        logits = self.head(torch.tanh(x.cumsum(1)))
        loss = None
        if labels is not None:
            scores, labels = (logits[:, :-1], labels[:, 1:]) if self.causal else (logits, labels)
            loss = cross_entropy(scores.reshape(-1, 7), labels.reshape(-1), ignore_index=IGNORED)
        return SimpleNamespace(loss=loss, logits=logits)


def padded() -> dict[str, Tensor]:
    torch.manual_seed(1)
    ids, lengths = torch.randint(7, (8, 6)), torch.tensor([6, 2, 3, 6, 2, 2, 5, 4])
    mask = (torch.arange(6) < lengths[:, None]).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, IGNORED)}


def cut(batch: dict[str, Tensor], n: int = 2) -> list[dict[str, Tensor]]:
    return [{k: v[i : i + n] for k, v in batch.items()} for i in range(0, 8, n)]


def dense_top(model: LanguageModel, batch: dict[str, Tensor]) -> float:
    """The largest eigenvalue of the Hessian of the mean loss over counted tokens, by torch's dense Hessian."""
    shapes = {n: p.shape for n, p in model.named_parameters()}
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    def loss(w: Tensor) -> Tensor:
        parts = dict(zip(shapes, w.split([s.numel() for s in shapes.values()]), strict=True))
        weights = {n: parts[n].view(s) for n, s in shapes.items()}
        return torch.func.functional_call(model, weights, (), batch).loss  # type: ignore[no-any-return]

    hessian = torch.autograd.functional.hessian(loss, flat)  # type: ignore[no-untyped-call]
    return float(torch.linalg.eigvalsh(hessian)[-1])


@pytest.mark.parametrize("causal", [False, True])
def test_padded_data_have_one_curvature_however_they_are_cut(causal: bool) -> None:
    model, batch = LanguageModel(causal), padded()
    exact = dense_top(model, batch)
    for data in (batch, cut(batch), cut(batch, 4)):
        found = steppe.measure(model, None, data, ["lambda_max", "loss"], weight="tokens", progress=False)
        assert found["lambda_max"].value == pytest.approx(exact, rel=1e-5)
        assert found["loss"].value == pytest.approx(float(model(**batch).loss.detach()), rel=1e-12)
    counted = (batch["labels"][:, 1:] if causal else batch["labels"]) != IGNORED
    made = steppe.objective(model, cut(batch), weight="tokens")
    assert made.batch_weights == [float(counted[i : i + 2].sum()) for i in range(0, 8, 2)]


@pytest.mark.parametrize("causal", [False, True])
def test_tokens_are_counted_where_the_loss_is_one_of_torch_and_refused_where_not(causal: bool) -> None:
    model, batch = LanguageModel(causal), padded()
    found = steppe.measure(model, None, cut(batch), ["lambda_max"], progress=False)
    assert found["lambda_max"].value == pytest.approx(dense_top(model, batch), rel=1e-5)

    def doubled(model: LanguageModel, batch: dict[str, Tensor]) -> tuple[Tensor, None]:
        return 2 * model(**batch).loss, None

    with pytest.raises(ValueError, match="weight='tokens'"):
        objective(model, cut(batch), forward=doubled).loss()


def test_pairs_whose_loss_ignores_labels_are_weighted_too() -> None:
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 3).double(), torch.randn(8, 4, dtype=torch.float64), torch.randint(3, (8,))
    y[:3] = IGNORED
    expected = float(cross_entropy(model(x), y).detach())
    made = objective(model, [(x[:4], y[:4]), (x[4:], y[4:])], cross_entropy, weight="tokens")
    assert made.loss() == pytest.approx(expected, rel=1e-12)


def test_a_loss_of_logits_and_labels() -> None:
    model, batch = LanguageModel(False), padded()

    def of_first(logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(logits[:, 0], labels[:, 0])

    expected = float(cross_entropy(model(**batch).logits[:, 0], batch["labels"][:, 0]).detach())
    assert steppe.measure(model, of_first, cut(batch), ["loss"], progress=False)["loss"].value == pytest.approx(
        expected
    )
    found = steppe.measure(model, None, batch, ["gauss_newton_trace", "adaptive_avg_l2_normalised"], progress=False)
    assert all("pass loss_fn" in why for why in found.failures.values())
    assert len(found.failures) == 2


def test_what_has_no_loss_of_its_own_is_refused() -> None:
    batch = padded()
    with pytest.raises(TypeError, match="without one: give the batches 'labels', or pass loss_fn"):
        objective(LanguageModel(False), {k: v for k, v in batch.items() if k != "labels"}).loss()
    with pytest.raises(TypeError, match="not a dictionary: pass loss_fn"):
        objective(nn.Linear(2, 2), (torch.ones(2, 2), torch.ones(2))).loss()

    class Rows:
        column_names = ("input_ids",)

    with pytest.raises(TypeError, match="DataLoader"):
        objective(LanguageModel(False), Rows())


# -- pools of classifiers of tokens ------------------------------------------------------------------------------------

NETS = """
import torch
from types import SimpleNamespace

class Classifier(torch.nn.Module):
    def __init__(self, outputs, width):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(11, width), torch.nn.Linear(width, outputs)

    def forward(self, input_ids, attention_mask=None, labels=None):
        mask = attention_mask[..., None]
        return SimpleNamespace(logits=self.head((self.embed(input_ids) * mask).sum(1) / mask.sum(1)))

def classifier(outputs, width=4):
    return Classifier(outputs, width)

def plain(outputs):
    return torch.nn.Sequential(torch.nn.Embedding(11, 4), torch.nn.Flatten(), torch.nn.Linear(24, outputs))
"""
CLASSES = ["contradiction", "entailment", "neutral"]


def arrays(n: int, seed: int, classes: int) -> tuple[dict[str, Any], Any]:
    draw = np.random.default_rng(seed)
    lengths = draw.integers(2, 7, n)
    mask = (np.arange(6) < lengths[:, None]).astype(np.int64)
    return {"input_ids": draw.integers(0, 11, (n, 6)), "attention_mask": mask}, draw.integers(0, classes, n)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Arrays of tokens for training and testing, arrays like those of HANS, and two models in several formats."""
    folder, before = tmp_path_factory.mktemp("tokens"), Path.cwd()
    os.chdir(folder)
    Path("token_nets.py").write_text(NETS)
    parts = {part: arrays(n, seed, 3) for seed, (part, n) in enumerate({"train": 40, "test": 30}.items())}
    content = {f"{k}_{part}": v for part, (x, y) in parts.items() for k, v in {**x, "labels": y}.items()}
    np.savez("mnli.npz", classes=np.array(CLASSES), **content)
    x, y = arrays(50, 7, 2)
    np.savez("hans.npz", **x, labels=y, classes=np.array(["entailment", "neutral+contradiction"]))
    sys.path.insert(0, str(folder))
    from token_nets import classifier  # type: ignore[import-not-found]

    Path("a").mkdir()
    Path("b").mkdir()
    for seed, name in enumerate("ab"):
        torch.manual_seed(seed)
        state = classifier(3).state_dict()
        torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}, "epoch": 3}, f"{name}/model.pt")
        save_file({f"model.{k}": v for k, v in state.items()}, f"{name}.safetensors")
    yield folder
    os.chdir(before)
    sys.path.remove(str(folder))
    del sys.modules["token_nets"]


def predictions(name: str, x: dict[str, Any]) -> Any:
    from token_nets import classifier

    model = classifier(3)
    state = torch.load(f"{name}/model.pt", weights_only=True)["state_dict"]
    model.load_state_dict({k.removeprefix("module."): v for k, v in state.items()})
    with torch.no_grad():
        return model(**{k: torch.from_numpy(v) for k, v in x.items()}).logits.argmax(1).numpy()


def pool(out: str, **more: Any) -> Study:
    given: dict[str, Any] = {
        "base": {"data": "npz:mnli.npz", "model": "token_nets:classifier", "device": "cpu"}, "pool": "?/model.pt",
        "normalise": "none", "measures": ["lambda_max", "loss"], "out": out, "ood": {"hans": "npz:hans.npz"},
    }  # fmt: skip
    return Study.of(given | more, out)


def test_a_pool_of_models_of_tokens_with_errors_elsewhere(place: Path) -> None:
    study = pool("pt")
    assert study.targets == ("test_error", "gap", "hans_error")
    run(study, Serial(), progress=False)
    planned, table = look(study)
    assert [cell.name for cell in planned] == ["a/model", "b/model"]
    (test, labels), (hans, entailed) = arrays(30, 1, 3), arrays(50, 7, 2)
    for one in table.runs:
        name = one.name[0]
        assert one.targets["test_error"] == pytest.approx((predictions(name, test) != labels).mean())
        merged = np.where(predictions(name, hans) == 1, 0, 1)  # entailment, or one of the two others
        error = (merged != entailed).mean()
        assert one.targets["hans_error"] == pytest.approx(error)
        assert one.target_errors["hans_error"] == pytest.approx((error * (1 - error) / 50) ** 0.5)
    # the same weights as .safetensors
    files = pool("files", pool="?.safetensors")
    run(files, Serial(), progress=False)
    for one, other in zip(table.runs, look(files)[1].runs, strict=True):
        assert one.measures["lambda_max"].value == other.measures["lambda_max"].value


def test_test_sets_that_are_added_later_are_evaluated(place: Path) -> None:
    run(pool("later", ood={}), Serial(), progress=False)
    assert all("hans_error" not in one.targets for one in look(pool("later"))[1].runs)
    run(pool("later"), Serial(), progress=False)
    assert all("hans_error" in one.targets for one in look(pool("later"))[1].runs)


def test_a_table_that_disagrees_about_another_test_set_stops_the_study(place: Path) -> None:
    Path("errors.csv").write_text("checkpoint,hans_error\na,0.99\nb,0.99\n")
    with pytest.raises(Disagreement, match=r"hans_error of .* here and 0\.99 in the table"):
        run(pool("disagree", errors="errors.csv"), Serial(), progress=False)


def test_integer_inputs_without_a_name(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from token_nets import plain

    x, y = arrays(40, 0, 3)
    np.savez("tokens.npz", tokens=x["input_ids"], labels=y)
    torch.manual_seed(0)
    model = plain(3)
    save_file(model.state_dict(), "plain.safetensors")
    words = ["plain.safetensors", "--model", "token_nets:plain", "--data", "npz:tokens.npz", "--normalise", "none"]
    capsys.readouterr()
    assert main(["measure", *words, "--measures", "loss", "--split", "test", "--device", "cpu", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)["results"][0]["value"]
    rows = torch.arange(40) % 5 == 4
    expected = cross_entropy(model(torch.from_numpy(x["input_ids"])[rows]), torch.from_numpy(y)[rows])
    assert value == pytest.approx(float(expected.detach()), rel=1e-5)


def test_a_classifier_of_tokens_trains_and_resumes(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data", "npz:mnli.npz", "--model", "token_nets:classifier", "--epochs", "2", "--batch-size", "10"]
    assert main(["train", *words, "--device", "cpu", "--out", "runs/t", "--measures", "lambda_max[rows=test]"]) == 0
    assert main(["measure", "runs/t", "--model", "token_nets:classifier", "--measures", "loss", "--device", "cpu"]) == 0


def test_damaged_arrays_of_tokens_are_refused(place: Path) -> None:
    from steppe.data.dataset import DataError
    from steppe.data.registry import load

    x, y = arrays(40, 0, 3)
    for wrong, said in (
        ({"input_ids": x["input_ids"].astype(float)}, "integers"),
        ({"attention_mask": x["attention_mask"][:, :3]}, "one shape"),
    ):
        np.savez("wrong.npz", **{**x, **wrong}, labels=y)
        with pytest.raises(DataError, match=said):
            load("npz:wrong.npz")


# -- the real packages -------------------------------------------------------------------------------------------------


def test_models_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    small = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(**small, intermediate_size=8, max_position_embeddings=8)
    batch = padded()
    causal = transformers.GPT2Config(
        vocab_size=9, n_embd=8, n_layer=1, n_head=2, n_positions=8, bos_token_id=0, eos_token_id=1
    )
    for model in (
        transformers.BertForMaskedLM(config), transformers.BertLMHeadModel(config), transformers.GPT2LMHeadModel(causal)
    ):  # fmt: skip
        model = model.double().eval()
        one, four = (
            steppe.measure(model, None, data, ["lambda_max"], weight="tokens", progress=False)["lambda_max"].value
            for data in (batch, cut(batch))
        )
        assert one == pytest.approx(four, rel=1e-6)


def test_datasets_of_the_package_go_through_a_loader() -> None:
    """`datasets.Dataset` is refused with the way out, which gives what the same tensors give."""
    datasets, model, batch = pytest.importorskip("datasets"), LanguageModel(False), padded()
    rows = datasets.Dataset.from_dict({k: v.tolist() for k, v in batch.items()})
    with pytest.raises(TypeError, match="DataLoader"):
        objective(model, rows, weight="tokens")
    loader = torch.utils.data.DataLoader(rows.with_format("torch"), batch_size=2)
    found = steppe.measure(model, None, loader, ["lambda_max"], weight="tokens", progress=False)
    assert found["lambda_max"].value == pytest.approx(dense_top(model, batch), rel=1e-5)
