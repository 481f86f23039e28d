"""The views that `explain` makes: every file here registers its own, and is found by being here."""
