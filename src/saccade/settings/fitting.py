"""Rules on facts: the dataset, the model and its weights, the machine and the time."""

from .decisions import Change, Rule, between
from .facts import Facts, known
from .families import family_of
from .machine_rules import MACHINE_RULES
from .schema import TrainConfig
from .sizes import (
    batch_for,
    batch_of_large,
    epochs_for,
    options_above_small,
    patches_for,
    resized_side,
    side_for,
    side_of_whole,
    steps_of_epoch,
)
from .strength import scale_augmentation_to_epochs


def _tried_rate(config: TrainConfig, facts: Facts) -> Change | None:
    tried = known(facts.tried)
    values = {"optim.lr": tried.lr, "optim.batch_size": tried.batch_size, "optim.least_steps": None}
    return Change(values, tried.why)


def _smaller_model(config: TrainConfig, facts: Facts) -> Change | None:
    time = known(facts.time)
    return (
        None if time.options is None else Change({"model.options": {**config.model.options, **time.options}}, time.slow)
    )


def _smaller_images(config: TrainConfig, facts: Facts) -> Change | None:
    time = known(facts.time)
    return None if time.img_size is None else Change({"data.img_size": time.img_size}, time.slow)


def _epochs_in_time(config: TrainConfig, facts: Facts) -> Change:
    time = known(facts.time)
    why = f"{time.epochs} epochs take {time.pace}; the time budget is {time.limit}"
    return Change({"schedule.epochs": time.epochs, "schedule.steps": None}, why)


def _task_of_set(config: TrainConfig, facts: Facts) -> Change | None:
    task = known(facts.data).task
    return None if config.task else Change({"task": task}, f"the dataset is laid out for the task {task}")


def _full_name(config: TrainConfig, facts: Facts) -> Change | None:
    model = known(facts.model)
    if config.model.name not in (model.requested, model.name):
        return None
    return Change({"model.name": model.name}, f"the full name of {model.requested}")


def _size_of_weights(config: TrainConfig, facts: Facts) -> Change | None:
    weights = known(facts.model).weights
    if config.data.img_size or weights is None or known(facts.data).largest is not None:
        return None
    return Change({"data.img_size": weights.img_size}, f"the weights were trained at {weights.img_size} pixels")


def _size_of_arrays(config: TrainConfig, facts: Facts) -> Change | None:
    array = known(facts.data).array
    if config.data.img_size or array is None:
        return None
    return Change({"data.img_size": array[0]}, f"the images in memory have {array[0]} pixels")


def _size_of_files(config: TrainConfig, facts: Facts) -> Change | None:
    if config.data.img_size:
        return None
    data, model = known(facts.data), known(facts.model)
    if model.side is None:
        return None
    seen = "the image size is unknown" if data.side is None else f"images of about {data.side} pixels"
    why = f"{seen}; {model.name} is made for {model.side} pixels"
    return Change({"data.img_size": side_for(data.side, model.side)}, why)


def _size_of_whole(config: TrainConfig, facts: Facts) -> Change | None:
    data, gpu = known(facts.data), known(facts.machine).gpu
    if config.data.img_size or data.largest is None or data.longer is None or data.side is None:
        return None
    own_side = resized_side(data.side, data.longer, data.longest)
    side, limit = side_of_whole(own_side, data.thinnest, largest=data.largest, gpu=gpu)
    why = f"images of about {data.longer} x {data.side} pixels are used whole, since the task's details matter"
    if data.longest is not None:
        side = min(side, data.longest)
        why += f"; the shorter side is resized, the longer one to at most {data.longest}"
    return Change({"data.img_size": side}, f"{why}; {limit}" if limit else why)


def _large_images(config: TrainConfig, facts: Facts) -> Change | None:
    side, largest = config.data.img_size, known(facts.data).largest
    if config.optim.least_steps is None or side is None or largest is None or side <= largest:
        return None
    batch = batch_of_large(config.optim.batch_size, side, largest)
    rate = float(f"{config.optim.lr * (batch / config.optim.batch_size) ** 0.5:.3g}")
    why = f"images of {side} pixels, larger than {largest}; the batch keeps its number of pixels"
    return Change({"optim.batch_size": batch, "optim.lr": rate}, why)


def _cpu_head(config: TrainConfig, facts: Facts) -> Change | None:
    head, gpu = config.model.cpu_head, known(facts.machine).gpu
    if head is None:
        return None
    if gpu:
        return Change({"model.cpu_head": None}, "trained on a GPU")
    why = f"trained on a CPU, where {config.model.head} takes several times as long"
    return Change({"model.head": head, "model.cpu_head": None}, why)


def _scale(found: tuple[list[float], list[float]] | None, config: TrainConfig, why: str) -> Change | None:
    if found is None:
        return None
    own = {"data.mean": config.data.mean, "data.std": config.data.std}
    values = {name: value for (name, was), value in zip(own.items(), found, strict=True) if not was}
    return Change(values, why) if values else None


def _scale_of_weights(config: TrainConfig, facts: Facts) -> Change | None:
    model = known(facts.model)
    found = None if model.weights is None else (model.weights.mean, model.weights.std)
    return _scale(found, config, f"normalisation that the weights of {model.name} were trained with")


def _scale_of_arrays(config: TrainConfig, facts: Facts) -> Change | None:
    data = known(facts.data)
    return _scale(
        data.measured, config, f"measured on {data.samples:,} training images" if data.samples else "measured"
    )


def _scale_of_model(config: TrainConfig, facts: Facts) -> Change | None:
    model = known(facts.model)
    found = None if model.side is None else (model.mean, model.std)
    return _scale(found, config, f"normalisation of {model.name}")


def _few_samples(config: TrainConfig, facts: Facts) -> Change | None:
    least = config.optim.least_steps
    if least is None:
        return None
    samples, family = known(facts.data).samples, family_of(config.recipe, known(facts.model).name)
    batch, rate = batch_for(config, samples, few_rate=None if family is None else family.few_rate)
    why = (
        f"{samples:,} training samples; an epoch has {least} steps or more"
        if samples is not None
        else "a stream of samples"
    )
    return Change({"optim.batch_size": batch, "optim.lr": rate, "optim.least_steps": None}, why)


def _epochs_of_steps(config: TrainConfig, facts: Facts) -> Change | None:
    steps, samples, batch = config.schedule.steps, known(facts.data).samples, config.optim.batch_size
    if steps is None:
        return None
    epochs = epochs_for(config, samples, batch)
    why = f"{steps} steps with batch size {batch} and {samples:,} training samples"
    return Change({"schedule.epochs": epochs, "schedule.steps": None}, why)


def _options_of_weights(config: TrainConfig, facts: Facts) -> Change | None:
    weights = known(facts.model).weights
    if weights is None or facts.resumed:
        return None
    why = f"the weights of {known(facts.model).name} were trained with these options"
    return Change({"model.options": {**weights.options, **config.model.options}}, why)


def _options_above_small(config: TrainConfig, facts: Facts) -> Change | None:
    side, model = config.data.img_size, known(facts.model)
    if side is None:
        return None
    options = options_above_small(config.model.options, side, model.above_small)
    why = f"{model.name} is made for small images; these images have {side} pixels"
    return Change({"model.options": options}, why) if options != config.model.options else None


def _patches(config: TrainConfig, facts: Facts) -> Change | None:
    side, model = config.data.img_size, known(facts.model)
    family = family_of(config.recipe, model.name)
    if family is None or side is None or facts.filled or model.weights is not None:
        return None
    options = patches_for(config, family, model.name, side)
    why = f"images of {side} pixels; {family.name} models need enough patches per image"
    return Change({"model.options": {**config.model.options, **options}}, why) if options else None


def _short_run(config: TrainConfig, facts: Facts) -> Change | None:
    full, epochs = config.augment.full_epochs, config.schedule.epochs
    if full is None:
        return None
    why = f"{epochs} epochs; runs under {full} epochs train better with less augmentation"
    return Change(between(config, scale_augmentation_to_epochs(config, epochs)), why)


def _short_warm_up(config: TrainConfig, facts: Facts) -> Change | None:
    schedule, samples = config.schedule, known(facts.data).samples
    values: dict[str, float] = {}
    if schedule.warmup_steps is not None:
        if samples is not None:
            steps = schedule.epochs * steps_of_epoch(samples, config.optim.batch_size)
            values = {"schedule.warmup_steps": min(schedule.warmup_steps, steps // 5)}
    elif schedule.warmup_share is None:
        values = {"schedule.warmup": min(schedule.warmup, schedule.epochs / 5)}
    why = f"{schedule.epochs} epochs; the warm-up takes at most a fifth (schedule.warmup_share allows any share)"
    return Change(values, why)


TRIED = (Rule("tried-rate", "set", ("tried",), _tried_rate),)
TIMED = (
    Rule("smaller-model", "budget", ("time",), _smaller_model),
    Rule("smaller-images", "budget", ("time",), _smaller_images),
    Rule("epochs-in-time", "budget", ("time",), _epochs_in_time),
)
FOUND = (
    Rule("task-of-set", "set", ("data",), _task_of_set),
    Rule("full-name", "model", ("model",), _full_name),
    Rule("size-of-weights", "model", ("data", "model"), _size_of_weights),
    Rule("size-of-arrays", "set", ("data",), _size_of_arrays),
    Rule("size-of-whole", "set", ("data", "machine"), _size_of_whole),
    Rule("size-of-files", "set", ("data", "model"), _size_of_files),
    Rule("scale-of-weights", "model", ("model",), _scale_of_weights),
    Rule("scale-of-arrays", "set", ("data",), _scale_of_arrays),
    Rule("scale-of-model", "model", ("model",), _scale_of_model),
    Rule("cpu-head", "machine", ("machine",), _cpu_head),
    Rule("large-images", "set", ("data",), _large_images),
    Rule("few-samples", "set", ("data", "model"), _few_samples),
    Rule("epochs-of-steps", "set", ("data",), _epochs_of_steps),
    Rule("options-of-weights", "model", ("model",), _options_of_weights),
    Rule("options-above-small", "model", ("model",), _options_above_small),
    Rule("patches-of-small-images", "family", ("model",), _patches),
    Rule("short-run", "recipe", (), _short_run),
    Rule("short-warm-up", "recipe", ("data",), _short_warm_up),
    *MACHINE_RULES,
)
