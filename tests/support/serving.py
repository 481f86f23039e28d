"""A server for tests: models that answer by an image's brightness, behind real sockets."""

import contextlib
import io
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
from PIL import Image

from saccade.data.spec import InputSpec
from saccade.deployment.app import Settings, create_app
from saccade.deployment.browse import RunIndex
from saccade.deployment.explaining import Explainer
from saccade.deployment.limits import Limits
from saccade.deployment.serve import make_server, run_server
from saccade.explanation.view import Explained, ExplainedSample, Figure, View
from saccade.report import line_chart
from saccade.tasks import Classify

ROOT = Path(__file__).parents[2]
CLASSES = tuple(f"level {level}" for level in range(8))
BAD_NAME = '<img src=x onerror="document.title=1">'


class Brightness:
    """Answers the class of an image's brightness; sleeps as a model would compute."""

    kind, task, model, channels, img_size = "run", Classify, None, 3, 16

    def __init__(self, name="brightness", *, seconds=0.0, classes=CLASSES, spec=None):
        self.name, self.seconds, self.classes = name, seconds, classes
        self.spec = spec or InputSpec(classes, 3, 16, [0.5] * 3, [0.5] * 3)
        self.framing = self.spec.framing
        self.codec, self.presenter = self.task.codec(self.spec), self.task.presenter(self.spec)
        self.batches = []
        self.begun = threading.Event()
        self.go = threading.Event()  # a test may hold the model up
        self.go.set()

    def rows(self, images):
        self.begun.set()
        assert self.go.wait(30)
        self.batches.append(len(images))
        time.sleep(self.seconds)
        level = (images.float().mean((1, 2, 3)) / 32).long().clamp(max=len(self.classes) - 1).numpy()
        shares = np.full((len(images), len(self.classes)), 0.02, np.float32)
        shares[np.arange(len(images)), level] = 1 - 0.02 * (len(self.classes) - 1)
        return shares

    def about(self):
        about = {"name": self.name, "kind": self.kind, "img_size": 16, "parameters": 1, "plugins": []}
        return {**about, "task": "classify", "outputs": list(self.classes), "classes": list(self.classes)}


def explain(target, images, *, views=None, device="cpu", layers=6):
    """Stand in for `saccade.explain`: a view with a slider, one with a chart, one that is absent."""
    if views is not None and set(views) - {"attention", "entropy", "slots"}:
        raise ValueError(f"views = {views} was given; there are attention, entropy, slots")
    pixels = np.asarray(images[0])[:64, :64]
    maps = [
        Figure(
            f"map-{d}", f"Where layer {d} looks", np.full((32, 32, 3), 30 * d, np.uint8), layer=f"blocks.{d}", depth=d
        )
        for d in range(layers)
    ]
    curve = line_chart(
        {"entropy": [(0, 1.0), (1, 2.0), (2, float("nan"))]}, title="Entropy by layer", x_label="layer", y_label="nats"
    )
    found = [
        View("attention", "Attention", "Bright places were looked at.", maps, numbers={"worst": float("inf")}),
        View("entropy", "Entropy", "How spread attention is.", [Figure("entropy", "Entropy over depth", chart=curve)]),
        View("slots", "Slots", "Which places share a slot.", absent="This model has no slots."),
    ]
    return Explained("model", [ExplainedSample("picture", pixels, [(BAD_NAME, 0.5)], found)])


def image(level=3, *, size=(40, 30), kind="PNG"):
    """Return an encoded image of one brightness."""
    file = io.BytesIO()
    Image.new("RGB", size, (32 * level + 16,) * 3).save(file, kind)
    return file.getvalue()


def make_app(*predictors, explained=True, browse=(), **settings):
    """Return an application around brightness models."""
    limits = Limits(**settings.pop("limits", {}))
    models = [(one, Explainer(one, function=explain) if explained else None) for one in predictors or [Brightness()]]
    return create_app(models, settings=Settings(**{"limits": limits, **settings}), runs=RunIndex(browse))


@contextlib.contextmanager
def running(app):
    """Serve an application from a thread; gives its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = make_server(app)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive(), "the server did not stop within a minute"


def until(condition, seconds=30):
    """Wait for a condition; give up after some time, so that a fault is an error and not a hang."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "what was waited for did not come"
        time.sleep(0.01)


def start(seconds):
    """Serve from a process of its own; gives it and its port."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-m", "support.serving", str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    return process, int(process.stdout.readline())


def main():
    """Serve from a process of its own, which a test may kill: python -m support.serving SECONDS."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    run_server(make_app(Brightness(seconds=float(sys.argv[1])), queue=64, batch_size=8), listener)
    print("finished", flush=True)


if __name__ == "__main__":
    main()
