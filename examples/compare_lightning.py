"""A Lightning module compares SGD with SAM at equal passes: the module takes a trial, whose optimizer it returns."""

import logging
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import steppe
from steppe.integrations.lightning import SharpnessAwareSteps

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
x = torch.randn(600, 6, generator=torch.Generator().manual_seed(0))
y = (x[:, 0] + x[:, 1] > 0).long()


class Net(SharpnessAwareSteps, lightning.LightningModule):  # changed: a mixin
    def __init__(self, trial):  # changed: a trial
        super().__init__()
        self.trial = trial
        self.net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))

    def training_step(self, batch, number):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return self.trial.optimizer(self.net, momentum=0.9)  # changed: the method around SGD, with the trial's lr


def train(trial):  # changed: a function of a trial
    lightning.seed_everything(trial.seed, verbose=False)  # changed: a seed from the trial
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    # changed: the trial's epochs
    trainer = lightning.Trainer(max_epochs=trial.epochs, accelerator="cpu", enable_checkpointing=False, **quiet)
    loader = DataLoader(TensorDataset(x[:200], y[:200]), batch_size=50, shuffle=True)
    model = Net(trial)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the number of workers of the loader
        trainer.fit(model, loader)
    with torch.no_grad():
        correct = model.net(x).argmax(1) == y
    return correct[200:300], correct[300:]  # changed: which validation and which test rows are correct


space = {"lr": steppe.LogUniform(3e-3, 3e0), "epochs": 2}
result = steppe.compare(train, ["none", "sam"], space, tuning=2, trials=4, worth=10)

assert [round(row.counted) for row in result.rows] == [1, 2]  # forward passes per step
assert [row.trials for row in result.rows] == [4, 4]
assert result.contrasts[0].low <= result.contrasts[0].difference <= result.contrasts[0].high
print(result)
