"""Names that other libraries give to settings of saccade, for suggestions in error messages."""

# One line for each setting; the last part of a dotted name is looked up, in lower case and with underscores.
NAMES = """
    optim.lr: learning_rate base_lr max_lr peak_lr initial_lr blr lr0
    optim.name: optimizer optimiser opt
    optim.batch_size: batch bs batchsize train_batch_size total_batch_size global_batch_size
    optim.accumulate: grad_accum grad_accum_steps gradient_accumulation_steps accumulation_steps accumulate_grad_batches
    optim.weight_decay: wd decay l2 weightdecay
    optim.betas: beta beta1 beta2 adam_betas opt_betas
    optim.eps: epsilon opt_eps adam_epsilon
    optim.clip: clip_grad grad_clip clip_grad_norm gradient_clip gradient_clip_val max_grad_norm
    optim.layer_decay: layerwise_decay layer_wise_decay llrd
    optim.new_scale: head_lr_scale head_lr_mult head_lr_factor
    schedule.epochs: epoch num_epochs n_epochs max_epochs num_train_epochs
    schedule.steps: num_steps max_steps total_steps iters max_iters iterations
    schedule.warmup: warmup_epochs num_warmup_epochs
    schedule.warmup_steps: num_warmup_steps warmup_iters
    schedule.warmup_share: warmup_ratio warmup_proportion warmup_fraction
    schedule.warmup_lr: warmup_learning_rate warmup_start_lr
    schedule.min_lr: lr_min eta_min end_lr final_lr
    schedule.curve: scheduler sched lr_scheduler lr_schedule lr_scheduler_type
    schedule.patience: early_stopping early_stop early_stopping_patience patience_epochs
    loss.smoothing: label_smoothing ls
    loss.class_weights: class_weight
    data.path: data_path data_dir dataset data_root
    data.val: val_dir val_path validation
    data.val_share: val_split val_fraction val_ratio validation_split
    data.img_size: image_size input_size imgsz size resolution crop_size
    data.workers: num_workers n_workers dataloader_num_workers
    data.folds: n_folds num_folds n_splits k_folds kfold
    data.train_limit: max_samples max_train_samples limit_train_batches train_size
    model.name: model_name arch architecture backbone
    model.drop_path: drop_path_rate droppath stochastic_depth stochastic_depth_prob dpr
    model.options.drop_rate: dropout drop_rate drop dropout_rate
    model.checkpoint: weights checkpoint_path init_from resume_from finetune_from
    model.probe: linear_probe linear_probing
    model.freeze: freeze_layers frozen_stages freeze_backbone
    augment.mixup: mixup_alpha mix_up
    augment.cutmix: cutmix_alpha cut_mix
    augment.mix_prob: mixup_prob
    augment.switch_prob: mixup_switch_prob
    augment.off_epochs: mixup_off_epoch
    augment.flip: hflip horizontal_flip fliplr
    augment.jitter: color_jitter colour_jitter
    augment.erase: random_erasing random_erase erasing reprob re_prob
    augment.erase_kind: remode re_mode
    augment.repeats: aug_repeats repeated_aug num_aug_repeats
    augment.rand_ops: randaugment rand_augment auto_augment aa
    engine.precision: amp fp16 bf16 dtype amp_dtype mixed_precision autocast half
    engine.compile: torch_compile torchcompile
    engine.grad_checkpointing: gradient_checkpointing activation_checkpointing grad_checkpoint
    engine.threads: num_threads
    engine.graphs: cuda_graphs
    engine.device: gpu accelerator
    keep.ema: ema ema_decay model_ema model_ema_decay
    keep.every_steps: save_steps save_every checkpoint_every
    keep.evaluate_every: eval_every eval_interval val_interval eval_freq check_val_every_n_epoch
    seed: random_seed random_state manual_seed
"""
ALIASES = {
    alias: setting
    for setting, _, aliases in (line.strip().partition(": ") for line in NAMES.strip().splitlines())
    for alias in aliases.split()
}


def find_alias(name: str) -> str | None:
    """Return the setting that other libraries call by this name, which may be dotted or a flag; None if unknown."""
    return ALIASES.get(name.strip("-").rpartition(".")[2].lower().replace("-", "_"))
