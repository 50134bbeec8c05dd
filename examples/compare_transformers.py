"""A Trainer of Transformers compares AdamW with SAM around it at equal passes, in a function of a trial."""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments, set_seed
from transformers.utils import logging

import steppe
from steppe.integrations.transformers import SharpnessAwareTrainer

logging.set_verbosity_error()
logging.disable_progress_bar()
ids = torch.randint(5, 50, (260, 8), generator=torch.Generator().manual_seed(0))
labels = (ids[:, 0] > 27).long()
rows = [{"input_ids": i, "labels": label} for i, label in zip(ids, labels, strict=True)]
small = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def train(trial):  # changed: a function of a trial
    set_seed(trial.seed)  # changed: a seed from the trial
    model = BertForSequenceClassification(BertConfig(**small, num_labels=2, max_position_embeddings=8))
    opt = trial.optimizer(model, torch.optim.AdamW)  # changed: the method around AdamW, with the trial's lr
    with tempfile.TemporaryDirectory() as folder:
        # changed: the trial's epochs
        args = TrainingArguments(folder, num_train_epochs=trial.epochs, per_device_train_batch_size=20, report_to=[],
                                 save_strategy="no", disable_tqdm=True, logging_strategy="no", use_cpu=True,
                                 dataloader_pin_memory=False)  # fmt: skip
        trainer = SharpnessAwareTrainer(model, args, train_dataset=rows[:100], optimizers=(opt, None))  # changed
        trainer.train()
    with torch.no_grad():
        correct = model.eval()(input_ids=ids).logits.argmax(1) == labels
    return correct[100:160], correct[160:]  # changed: which validation and which test rows are correct


space = {"lr": steppe.LogUniform(1e-4, 1e-1), "epochs": 2}
result = steppe.compare(train, ["none", "sam"], space, tuning=2, trials=4, worth=10)

assert [round(row.counted) for row in result.rows] == [1, 2]  # forward passes per step
assert [row.trials for row in result.rows] == [4, 4]
assert result.contrasts[0].low <= result.contrasts[0].difference <= result.contrasts[0].high
print(result)
