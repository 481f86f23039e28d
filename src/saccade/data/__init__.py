"""Images with labels: where they come from, in which order and how they are varied."""
