"""LoRA by peft in TRL's SFTTrainer: AdamW, SAM and its cheap variants learn, and move nothing but the adapters."""

import os
import tempfile
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is downloaded
warnings.simplefilter("ignore")  # of the libraries about each other

import torch
from datasets import Dataset, disable_progress_bars
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback
from transformers.utils import logging
from trl import SFTConfig, SFTTrainer

import steppe
from steppe.integrations.transformers import SharpnessAwareTrainer

logging.set_verbosity_error()
disable_progress_bars()
torch.manual_seed(0)

# A language of sums: "3 + 4 = 7". The decoder learns it without carries; the adapters learn sums of two digits, a
# fifth of whose training texts is wrong.
WORDS = ["<pad>", "<eos>", "<unk>", "+", "=", *map(str, range(19))]
words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
sums = [(a, b) for a in range(10) for b in range(10)]
order = torch.randperm(len(sums)).tolist()
test = [sums[i] for i in order[:30]]
train = [sums[i] for i in order[30:]]


def texts(pairs, wrong=0.0):
    draws = torch.rand(len(pairs)).lt(wrong).tolist()
    return [f"{a} + {b} = {2 * a if bad else a + b}" for (a, b), bad in zip(pairs, draws, strict=True)]


def ids(pairs):
    return torch.tensor([tokenizer(text)["input_ids"] for text in texts(pairs)])


def loss_of_the_sum(model, pairs):
    """Cross-entropy of the last token, the sum."""
    rows = ids(pairs)
    with torch.no_grad():
        logits = model.eval()(input_ids=rows).logits[:, -2]
    return torch.nn.functional.cross_entropy(logits, rows[:, -1]).item()


small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
decoder = LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), max_position_embeddings=16, **small))
base = torch.optim.AdamW(decoder.parameters(), lr=3e-3)
easy = ids([(a, b) for a, b in train if a + b < 10])
for _ in range(60):
    base.zero_grad()
    decoder(input_ids=easy, labels=easy).loss.backward()
    base.step()
pretrained = {name: tensor.clone() for name, tensor in decoder.state_dict().items()}


class SharpSFT(SharpnessAwareTrainer, SFTTrainer):  # the only change to a script of TRL, beside method=
    pass


def fine_tuned(method):
    torch.manual_seed(0)
    decoder = LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), max_position_embeddings=16, **small))
    decoder.load_state_dict(pretrained)
    model = get_peft_model(decoder, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    with tempfile.TemporaryDirectory() as folder:
        args = SFTConfig(folder, max_steps=50, per_device_train_batch_size=16, learning_rate=1e-2, max_length=16,
                         use_cpu=True, bf16=False, report_to=[], save_strategy="no", logging_strategy="no",
                         disable_tqdm=True, dataloader_pin_memory=False)  # fmt: skip
        rows = Dataset.from_dict({"text": TRAINING})
        trainer = SharpSFT(model, args, train_dataset=rows, processing_class=tokenizer, method=method)
        trainer.remove_callback(PrinterCallback)
        calls = []
        model.register_forward_hook(lambda *_: calls.append(model.training))
        trainer.train()
    for name, tensor in decoder.state_dict().items():
        if "lora" not in name:  # the decoder's own weights are frozen: no pass moves them
            assert torch.equal(tensor, pretrained[name.replace(".base_layer", "")]), name
    return loss_of_the_sum(model, test), sum(calls) / 50


TRAINING = texts(train, wrong=0.2)
METHODS = {
    "AdamW": steppe.Plain(),
    "SAM": steppe.SAM(rho=0.05),
    "Friendly-SAM": steppe.FriendlySAM(rho=0.05),
    "ESAM, all rows": steppe.ESAM(rho=0.05, gamma=1.0),
    "SAM every 5 steps": steppe.Every(5, steppe.SAM(rho=0.05)),
    "LookSAM": steppe.LookSAM(rho=0.05, k=5),
    "MSAM": steppe.MomentumSAM(rho=0.05),
}
before = loss_of_the_sum(decoder, test)
found = {name: fine_tuned(method) for name, method in METHODS.items()}
print(f"loss of a sum on 30 new texts: {before:.2f} before")
for name, (loss, passes) in found.items():
    print(f"{name:18} {loss:.2f}   {passes:.1f} passes a step")
assert all(loss < before for loss, _ in found.values())
assert [round(passes, 1) for _, passes in found.values()] == [1, 2, 2, 2, 1.2, 1.2, 1]
