"""ONNX files with 8-bit weights: of matrix products, and of convolutions where these hold much of a model."""

import logging
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from .bundle import KEY, Bundle, ExportError
from .graph import quietly, shortened

MUCH = 0.2  # of a model's weights in convolutions: less is not worth what their activations lose
LITTLE = 0.9  # of the float32 file's size: an 8-bit one that is not smaller does not help


def write_int8(source: Path, path: Path, bundle: Bundle, calibration: Tensor) -> None:
    """Write an ONNX file anew with 8-bit weights; ranges are seen on framed training images, uint8 N, C, S, S.

    Activations of matrix products are scaled to 8 bits image by image as the graph runs. onnxruntime has no fast
    convolution of that kind, so those of convolutions have fixed ranges, seen on training images; weights get 7 bits
    there, since processors without 8-bit dot products add pairs of products in 16.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logger = logging.getLogger()
    level = logger.level
    try:
        logger.setLevel(logging.ERROR)  # it logs advice to the root
        with quietly(), tempfile.TemporaryDirectory(dir=path.parent) as folder:
            model = onnx.load_model(str(source))
            # Types of inner values are left out: the quantizer reads stale ones as promises.
            del model.graph.value_info[:]
            if share_in_convolutions(model) > MUCH:
                model = _with_static_convolutions(model, Path(folder), calibration)
            quantize_dynamic(model, str(path), op_types_to_quantize=["MatMul"], weight_type=QuantType.QInt8)
            made = onnx.load_model(str(path))
    except Exception as error:
        raise ExportError(f"{bundle.name} cannot be written with 8-bit weights: {shortened(error)}") from error
    finally:
        logger.setLevel(level)
    kept = [entry for entry in made.metadata_props if entry.key != KEY]
    del made.metadata_props[:]
    made.metadata_props.extend([*kept, onnx.StringStringEntryProto(key=KEY, value=bundle.to_json())])
    onnx.save_model(made, str(path))


def share_in_convolutions(model: Any) -> float:
    """Return the share of a graph's numbers that are weights of convolutions."""
    counts = {tensor.name: math.prod(tensor.dims) for tensor in model.graph.initializer}
    names = {node.input[1] for node in model.graph.node if node.op_type == "Conv"}
    return sum(counts.get(name, 0) for name in names) / max(sum(counts.values()), 1)


def tell_little(saved: float, whole: float) -> str | None:
    """Return what is said of an 8-bit file that is hardly smaller, by the sizes of both in MiB."""
    if saved <= LITTLE * whole:
        return None
    return (
        f"8-bit weights do not help here: {saved:.1f} of {whole:.1f} MiB are left, since few of this model's weights "
        "are in matrix products or convolutions; use model.onnx"
    )


def _with_static_convolutions(model: Any, folder: Path, calibration: Tensor) -> Any:
    """Return a graph whose convolutions run in 8 bits, batch norms folded into them."""
    import onnx
    import onnxruntime
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Images(CalibrationDataReader):
        """Gives one image after another."""

        def __init__(self) -> None:
            self.images: Iterator[Tensor] = iter(calibration.split(1))

        def get_next(self) -> dict[str, Any] | None:
            image = next(self.images, None)
            return None if image is None else {model.graph.input[0].name: image.numpy()}

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC  # what any runtime knows
    options.optimized_model_filepath = str(folder / "folded.onnx")
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    quantize_static(
        str(folder / "folded.onnx"),
        str(folder / "static.onnx"),
        Images(),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=["Conv"],
        per_channel=True,
        reduce_range=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    made = onnx.load_model(str(folder / "static.onnx"))
    del made.graph.value_info[:]
    return made
