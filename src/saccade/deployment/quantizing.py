"""8-bit quantization of ONNX files: matrix products, and convolutions if they have many of the weights."""

import logging
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from .bundle import KEY, Bundle, ExportError
from .graph import quietly, shortened

MUCH = 0.2  # least share of weights in convolutions to quantize these
LITTLE = 0.9  # largest useful size, relative to the float32 file


def write_int8(source: Path, path: Path, bundle: Bundle, calibration: Tensor) -> None:
    """Quantize an ONNX file to 8-bit weights, calibrated on framed training images, uint8 N, C, S, S.

    Activations of matrix products are quantized dynamically. onnxruntime has no fast dynamic convolution, so
    convolutions use static ranges from training images, and 7-bit weights, since processors without 8-bit dot products
    accumulate pairs of products in 16 bits.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logger = logging.getLogger()
    level = logger.level
    try:
        logger.setLevel(logging.ERROR)  # it logs to the root logger
        with quietly(), tempfile.TemporaryDirectory(dir=path.parent) as folder:
            model = onnx.load_model(str(source))
            # Remove types of inner values, since the quantizer relies on stale ones.
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
    """Return the share of a graph's parameters that are in convolutions."""
    counts = {tensor.name: math.prod(tensor.dims) for tensor in model.graph.initializer}
    names = {node.input[1] for node in model.graph.node if node.op_type == "Conv"}
    return sum(counts.get(name, 0) for name in names) / max(sum(counts.values()), 1)


def note_small_saving(saved: float, whole: float) -> str | None:
    """Return a note on an 8-bit file that is hardly smaller, from both sizes in MiB."""
    if saved <= LITTLE * whole:
        return None
    return (
        f"8-bit weights save little: {saved:.1f} of {whole:.1f} MiB remain, since few of this model's weights are in "
        "matrix products or convolutions; use model.onnx"
    )


def _with_static_convolutions(model: Any, folder: Path, calibration: Tensor) -> Any:
    """Return a graph with 8-bit convolutions and folded batch norms."""
    import onnx
    import onnxruntime
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Images(CalibrationDataReader):
        """Calibration data reader of single images."""

        def __init__(self) -> None:
            self.images: Iterator[Tensor] = iter(calibration.split(1))

        def get_next(self) -> dict[str, Any] | None:
            image = next(self.images, None)
            return None if image is None else {model.graph.input[0].name: image.numpy()}

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC  # portable
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
