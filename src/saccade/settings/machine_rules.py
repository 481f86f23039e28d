"""Rules on the machine: precision, compilation, CUDA graphs, kernels, workers and samples kept in memory."""

import math

from .decisions import Change, Rule
from .facts import Facts, known
from .schema import TrainConfig

# Optimizers whose steps a CUDA graph can capture by an option of theirs; those of sgd it captures without one.
CAPTURABLE = ("adam", "adamw", "nadamw", "muon", "nmuon", "adamuon", "nadamuon")
LIMIT = 2 * 2**30  # bytes that samples may take in memory with data.resident=auto, of all processes together
# Settings that follow from the machine alone, by the rule that decides them: a resumed run decides them anew.
OF_MACHINE = {"engine.graphs": "graphs", "engine.kernels": "kernels", "data.resident": "resident"}


def _precision(config: TrainConfig, facts: Facts) -> Change | None:
    machine = known(facts.machine)
    if config.engine.precision != "auto":
        return None
    return Change({"engine.precision": "bfloat16" if machine.gpu else "float32"}, f"trained on a {machine.kind}")


def _compile(config: TrainConfig, facts: Facts) -> Change | None:
    machine = known(facts.machine)
    if config.engine.compile is not None:
        return None
    return Change({"engine.compile": machine.gpu}, f"trained on a {machine.kind}")


def _graphs(config: TrainConfig, facts: Facts) -> Change | None:
    machine, optimizer = known(facts.machine), config.optim.name
    if config.engine.graphs is not None:
        return None
    against = ""
    if not machine.gpu:
        against = "trained on a CPU"
    elif machine.processes > 1:
        against = f"on a GPU, but steps of {machine.processes} processes together are not captured"
    elif config.engine.precision == "float16":
        against = "on a GPU, but float16 needs loss scaling, which a graph cannot capture"
    elif optimizer not in (*CAPTURABLE, "sgd"):
        against = f"on a GPU, but steps of the optimizer {optimizer} cannot be captured"
    why = f"trained on a GPU by {optimizer}; if steps cannot be captured after all, a warning says so"
    return Change({"engine.graphs": not against}, against or why)


def _kernels(config: TrainConfig, facts: Facts) -> Change | None:
    machine = known(facts.machine)
    if config.engine.kernels != "auto":
        return None
    if machine.kernels not in ("", "auto"):
        return Change({"engine.kernels": machine.kernels}, f"the environment has SACCADE_KERNELS={machine.kernels}")
    why = f"all that replace a module of the model on this {machine.kind}, which is known once the model is built"
    return Change({}, why, stays=("engine.kernels",))


def _array_workers(config: TrainConfig, facts: Facts) -> Change | None:
    array = known(facts.data).array
    if array is None:
        return None
    return Change({"data.workers": 0}, f"the images of {array[0]} pixels are in memory, so no worker process is needed")


def _workers(config: TrainConfig, facts: Facts) -> Change | None:
    cores = known(facts.machine).cores
    unread = facts.model is not None and facts.model.side is None
    if unread or config.data.workers is not None:
        return None
    return Change({"data.workers": min(cores, 8)}, f"{cores} CPU cores")


def _resident(config: TrainConfig, facts: Facts) -> Change | None:
    data, machine = known(facts.data), known(facts.machine)
    if config.data.resident != "auto":
        return None
    if data.decoded is None:
        why = "the size of encoded samples, targets included, is known when the first ones are read"
        return Change({}, why, stays=("data.resident",))
    limit = LIMIT / machine.processes
    train, val = (size <= limit for size in data.decoded)
    sizes = [f"take {size / 1e6:,.0f} MB decoded" if size < math.inf else "are a stream" for size in data.decoded]
    allowed = f"{limit / 1e6:,.0f} MB are allowed" + (" in each process" if machine.processes > 1 else "")
    if data.array is not None:
        sizes[0], train = f"{sizes[0]} and are in memory already", True
    why = f"training images {sizes[0]}, validation images {sizes[1]}; {allowed}"
    if train and not val:
        return Change({}, f"{why}, so training images alone are kept", stays=("data.resident",))
    return Change({"data.resident": "always" if train else "validation" if val else "never"}, why)


MACHINE_RULES = (
    Rule("precision", "machine", ("machine",), _precision),
    Rule("compile", "machine", ("machine",), _compile),
    Rule("graphs", "machine", ("machine",), _graphs),
    Rule("kernels", "machine", ("machine",), _kernels),
    Rule("no-workers", "set", ("data",), _array_workers),
    Rule("workers", "machine", ("machine",), _workers),
)
# Where the input's specification is known.
MEMORY_RULES = (Rule("resident", "set", ("data", "machine"), _resident),)
