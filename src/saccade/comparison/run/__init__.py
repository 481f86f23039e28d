"""Execute the runs of a comparison: folder, worker processes, time budget."""
