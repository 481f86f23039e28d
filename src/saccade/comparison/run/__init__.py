"""The runs of a comparison: their folder, the processes that train them, and the time left."""
