"""What knows nothing of models, tasks or runs: files, durations, wording, processes, and paths of moved modules."""
