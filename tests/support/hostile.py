"""Helpers that several files of the tests of hostile use."""

import threading


def within(function, seconds=20):
    """Return what a function returns or raises, or fail if it takes too long."""
    done = []

    def work():
        try:
            done.append(function())
        except Exception as error:
            done.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    assert done, "it did not come to an end"
    return done[0]
