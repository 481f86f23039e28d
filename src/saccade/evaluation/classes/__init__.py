"""What evaluating a model that answers with one class adds: labels, calibration, classes, attacks."""
