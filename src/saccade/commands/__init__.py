"""One verb of the `saccade` command a file: `flags` describes it to the parser, `run` does it."""
