"""Training that is a function of its settings: exact to resume, equal to compare."""
