"""Fine-tuning of language models: docs/llm.md says what its record says, and adapters are float32."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import steppe
from steppe.optim.forward_state import SHARE, SPARE

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "benchmarks" / "results" / "llm_cpu_2026-11-19.md"


def test_the_figures_of_the_page_are_those_of_the_record() -> None:
    page = (ROOT / "docs" / "llm.md").read_text()
    assert RECORD.name in page
    record = RECORD.read_text()
    tables = re.findall(r"\| method \| passes.*?\n\n", record, flags=re.DOTALL)
    assert [table.count("\n") for table in tables] == [2 + 7 + 1] * 2
    for table in tables:
        assert table in page
    (sentence,) = re.findall(r"has (\d+) % of its length in weights of bfloat16", record)
    assert f"{sentence} % of its length" in page
    (millions,) = re.findall(r"([\d.]+) million weights", record)
    assert f"has {2e6 * float(millions) / 2**20:.1f} MiB" in page  # two bytes each
    assert (SHARE, SPARE) == (4, 64 << 20)
    assert "up to 64 MiB and four times the bytes" in page


def test_a_small_update_leaves_a_weight_of_bfloat16_as_it_was() -> None:
    for dtype, kept in ((torch.bfloat16, True), (torch.float32, False)):
        weight = torch.tensor([0.02], dtype=dtype)
        assert torch.equal(weight - 1e-5, weight) == kept


def test_adapters_of_a_bfloat16_decoder_move_by_rho_and_the_decoder_by_nothing() -> None:
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    decoder = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=20, **small)).to(torch.bfloat16)
    model = peft.get_peft_model(decoder, peft.LoraConfig(r=2, target_modules="all-linear"))
    trained = [p for p in model.parameters() if p.requires_grad]
    assert {p.dtype for p in trained} == {torch.float32}
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    opt = steppe.sam(torch.optim.AdamW(trained, lr=1e-3), rho=0.05, model=model)
    rows = torch.randint(20, (2, 6))
    for number, pass_ in enumerate(opt.passes()):
        moved = {name: (p - before[name]).detach().double().norm() for name, p in model.named_parameters()}
        assert all(length == 0 for name, length in moved.items() if "lora" not in name)
        assert torch.stack(list(moved.values())).norm() == pytest.approx(0.05 if number else 0.0, rel=1e-5)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=rows, labels=rows).loss
        pass_.backward(loss)
    opt.step()
    assert any(not torch.equal(p, before[name]) for name, p in model.named_parameters())


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield import_module("llm")
    sys.modules.pop("llm", None)


def test_the_benchmark_counts_live_tensors(llm: Any) -> None:
    with llm.Live() as live:
        a = torch.ones(1000)  # 4000 bytes
        b = a[:10]  # a view
        c = a + 1
        del a, c
        d = torch.ones(500)
        del b
        assert live.now == 2000
    assert live.peak == 4000 + 4000
    del d


def test_the_benchmark_s_decoder_predicts_from_earlier_tokens_alone(llm: Any) -> None:
    torch.manual_seed(0)
    model = llm.Decoder(2, 64)
    tokens = torch.randint(llm.VOCABULARY, (1, 8))
    changed = tokens.clone()
    changed[0, 5] += 1
    difference = (model(tokens) - model(changed)).abs().amax(-1)[0]
    assert difference[:5].max() == 0
    assert difference[5:].min() > 0
