"""Optuna tunes rho: no worse than the default, a hopeless radius is pruned, and the best run repeats bit for bit."""

import tempfile

import optuna

from steppe.training import Config, train

EPOCHS = 4
folder = tempfile.mkdtemp()
optuna.logging.set_verbosity(optuna.logging.WARNING)


def config(rho, name):
    options = {"label_noise": 0.4, "validation": 0.3, "batch_size": 32, "device": "cpu", "threads": 1}
    options |= {"model_options": {"width": 64, "depth": 1}, "schedule": "constant", "lr": 0.05}
    return Config(method="sam", rho=rho, epochs=EPOCHS, out=f"{folder}/{name}", **options)


def objective(trial):
    settings = config(trial.suggest_float("rho", 0.01, 10.0, log=True), trial.number)
    for epoch in range(1, EPOCHS + 1):
        try:
            run = train(settings, until=epoch)  # resumes: each call trains one epoch
        except FloatingPointError:  # a loss that is not finite
            raise optuna.TrialPruned from None
        trial.report(run.result["validation_accuracy"], epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    return run.result["validation_accuracy"]


pruner = optuna.pruners.MedianPruner(n_startup_trials=1)
study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(0), pruner=pruner)
study.enqueue_trial({"rho": 0.05})
study.enqueue_trial({"rho": 10.0})  # no finite loss, or worse than the median after one epoch
study.optimize(objective, n_trials=5)

pruned = [t for t in study.trials if t.state == optuna.trial.TrialState.PRUNED]
default = study.trials[0].value  # nothing to compare with: the first trial is not pruned
assert study.best_value >= default, (study.best_value, default)
assert study.trials[1] in pruned, study.trials[1]
assert all(len(t.intermediate_values) < EPOCHS for t in pruned)
again = train(config(study.best_params["rho"], "again"))  # in one go
assert again.result["validation_accuracy"] == study.best_value
print(f"rho {study.best_params['rho']:.3f}: {study.best_value:.3f}; 0.05: {default:.3f}; {len(pruned)} pruned")
