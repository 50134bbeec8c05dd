"""Ray tasks train one run per rho, and each has the numbers of the same run in this process, bit for bit."""

import tempfile

import ray

from steppe.training import Config, open_run, train
from steppe.training.evaluate import TIMINGS

folder = tempfile.mkdtemp()
radii = [0.05, 0.2, 0.8]


def config(rho, place):
    options = {"label_noise": 0.4, "validation": 0.3, "batch_size": 32, "device": "cpu", "threads": 1}
    options |= {"model_options": {"width": 64, "depth": 1}, "lr": 0.05}
    return Config(method="sam", rho=rho, epochs=2, out=f"{folder}/{place}-{rho}", **options)


@ray.remote
def task(rho):
    return str(train(config(rho, "ray")).path)


def numbers(run):
    return [{k: v for k, v in record.items() if k not in TIMINGS} for record in run.records]


ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
runs = {rho: open_run(path) for rho, path in zip(radii, ray.get([task.remote(rho) for rho in radii]), strict=True)}
ray.shutdown()

accuracies = {rho: run.result["validation_accuracy"] for rho, run in runs.items()}
for rho, run in runs.items():
    assert numbers(run) == numbers(train(config(rho, "here")))
assert len({str(numbers(run)) for run in runs.values()}) == len(radii), "rho has no effect"
print(f"validation accuracies: {accuracies}; best rho: {max(accuracies, key=accuracies.get)}")
