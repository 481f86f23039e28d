"""Refuse tasks of other packages that were written before roles were introduced."""

ROLES = {
    "reader": "claims read_table open complete_spec options_of reads rank read_by",
    "codec": "encoder mixed_targets expander own_batches graph_inputs pack unpack stack read_output unframe gap ask "
    "output target_names",
    "hosts": "find_model builds create_model model_options add_head own_models",
    "metrics": "metric_specs metric primary_of primary_metric settle primary",
    "presenter": "describe table_head table_rows paint line_record served_record same page outputs_key masks boxes",
}  # fmt: skip


def refuse_earlier(task: type) -> None:
    """Refuse a task with methods that now belong to a role, and name the role."""
    wrong = {role: [name for name in names.split() if name in vars(task)] for role, names in ROLES.items()}
    moves = [f"{', '.join(names)} to its {role.title()}" for role, names in wrong.items() if names]
    if moves:
        raise TypeError(
            f"the task {task.__name__} is written for an earlier version of saccade; move {'; '.join(moves)}. Each is "
            "a class derived from the class of that name in saccade.tasks, and the task refers to it as in "
            "`presenter = ...` (docs/tasks.md)"
        )
